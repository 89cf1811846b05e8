// Preloaded into programs that tests start, of which there are more at once than there are cores.
#include <dlfcn.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

std::int64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
}

/// To be called for as long as a thread waits. Sleeps are an eighth of the time in which nothing
/// but waiting was done, within these bounds.
void give_way() {
  constexpr std::int64_t kShortest = 20'000, kLongest = 1'000'000;  // ns
  thread_local std::int64_t began = 0, yielded = 0;                 // of the wait that goes on
  const std::int64_t time = now();
  if (time - yielded > kShortest) began = time;  // something else was done in between
  const timespec sleep{.tv_sec = 0, .tv_nsec = std::clamp((time - began) / 8, kShortest, kLongest)};
  nanosleep(&sleep, nullptr);
  yielded = now();
}

}  // namespace

// Who yields its core sleeps. Open MPI's ranks yield for as long as they wait, and the kernel goes
// on giving them their share of the cores, which those that work then lack.
extern "C" int sched_yield() noexcept {
  give_way();
  return 0;
}

// MPICH's ranks ask UCX for as long as they wait, and whenever they look for messages.
extern "C" unsigned ucp_worker_progress(void* worker) {
  static const auto ucx =
      reinterpret_cast<unsigned (*)(void*)>(dlsym(RTLD_NEXT, "ucp_worker_progress"));
  if (ucx == nullptr) {
    std::fputs("beside_others: UCX has no ucp_worker_progress\n", stderr);
    std::abort();
  }
  const unsigned events = ucx(worker);
  if (events == 0) give_way();
  return events;
}

// A thread that gives way to its own program's others would give way to all programs beside it, and
// have next to nothing of the cores.
extern "C" int nice(int) noexcept { return 0; }
