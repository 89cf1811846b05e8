// Refuses allocations and threads where a test says so: in a test program that links this, or in
// any program that has it preloaded, by the environment TESSERA_REFUSE_NEW or TESSERA_REFUSE_THREAD
// (numbers of calls, from 0). TESSERA_SAY_LISTEN makes the program say where it listens.
#pragma once

#include <cstdint>

namespace tessera::test {

/// Counts calls from 0 on; the one with the number `first` is refused, or all from there on.
struct Refusal {
  std::int64_t first = -1;  // -1: none
  bool all_from_there = false;
};

/// Calls of operator new, in all threads. Begins to count.
void refuse_allocation(Refusal refusal);
/// Whether an allocation was refused since.
bool allocation_was_refused();
/// How many allocations of operator new were not deleted.
std::int64_t live_allocations();

/// Calls of pthread_create, as std::thread makes them. Begins to count.
void refuse_thread(Refusal refusal);
bool thread_was_refused();

}  // namespace tessera::test
