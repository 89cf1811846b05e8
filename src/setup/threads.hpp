// The OpenMP threads of a rank.
#pragma once

#include "deck/deck.hpp"

namespace tessera::setup {

/// The count: run.threads, else OMP_NUM_THREADS, else the rank's `cores`, which are those that the
/// launcher gave it, not the machine's. Throws DeckError where OMP_NUM_THREADS counts and is no
/// number.
int thread_count(const deck::RunSection& run, int cores);
/// Has OpenMP work with so many threads from now on, and starts them. Throws MemoryError when the
/// system does not give them: OpenMP itself would end the process.
void use_threads(int threads);

}  // namespace tessera::setup
