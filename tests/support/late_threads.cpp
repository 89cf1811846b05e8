// Preloaded into programs: a thread beside the first one that polls and is woken goes on only after
// some time on its core, as on a machine where others have it.
#include <dlfcn.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

extern "C" int poll(pollfd* files, nfds_t count, int timeout) {
  static const auto next =
      reinterpret_cast<int (*)(pollfd*, nfds_t, int)>(dlsym(RTLD_NEXT, "poll"));
  if (next == nullptr) {
    std::fputs("late_threads: the C library has no poll\n", stderr);
    std::abort();
  }
  const int ready = next(files, count, timeout);
  if (gettid() == getpid()) return ready;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(400);
  while (std::chrono::steady_clock::now() < end) {
  }
  return ready;
}
