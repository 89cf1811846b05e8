// Allocations and threads that are refused where a test says so: of a test program that links this,
// or of any program that has it preloaded and the environment TESSERA_REFUSE_NEW or
// TESSERA_REFUSE_THREAD (numbers, from 0). With TESSERA_SAY_LISTEN, that says where it listens.
#pragma once

#include <cstdint>

namespace tessera::test {

/// Counts calls from 0 on; the one with the number `first` is refused, or all from there on.
struct Refusal {
  std::int64_t first = -1;  // -1: none
  bool all_from_there = false;
};

/// Of operator new, in all threads. Begins to count.
void refuse_allocation(Refusal refusal);
/// Whether one was refused since.
bool allocation_was_refused();
/// Made by operator new and not deleted.
std::int64_t live_allocations();

/// Of pthread_create as std::thread calls it. Begins to count.
void refuse_thread(Refusal refusal);
bool thread_was_refused();

}  // namespace tessera::test
