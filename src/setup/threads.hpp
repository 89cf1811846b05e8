// The OpenMP threads of a rank.
#pragma once

#include "deck/deck.hpp"

namespace tessera::setup {

/// OpenMP threads of a rank: run.threads, else OMP_NUM_THREADS, else its `cores` (trap 62). Throws
/// DeckError where OMP_NUM_THREADS counts and is no number.
int thread_count(const deck::RunSection& run, int cores);
/// Has OpenMP work with so many threads from now on, and starts them. Throws MemoryError when the
/// system does not give them: OpenMP itself would end the process.
void use_threads(int threads);

}  // namespace tessera::setup
