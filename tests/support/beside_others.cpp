// Preloaded into programs that tests start, of which there are more at once than there are cores.
#include <time.h>

// Who yields its core sleeps for a moment. Open MPI's ranks yield for as long as they wait, and the
// kernel goes on giving them their share of the cores, which those that work then lack.
extern "C" int sched_yield() noexcept {
  constexpr timespec kMoment{.tv_sec = 0, .tv_nsec = 20'000};
  nanosleep(&kMoment, nullptr);
  return 0;
}
