// Threads beside the main one.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <functional>
#include <future>
#include <thread>
#include <utility>
#include <vector>

namespace tessera {

/// No signal reaches this thread, nor any that it starts, while this lives.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

/// Starts a thread that takes no signal: signals are the main thread's, and must not interrupt
/// another within MPI or HDF5 (trap 61). `name`: at most 15 characters, for ps and debuggers.
template <typename Work>
std::jthread start_thread(const char* name, Work&& work) {
  const SignalsBlocked inherited;
  std::jthread thread(std::forward<Work>(work));
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

/// Calls work(worker, item) for every item below `items`, on `workers` threads that each take the
/// next one; rethrows what one of them threw, once all have ended.
template <typename Work>
void in_turns(std::size_t workers, std::size_t items, Work&& work) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::future<void>> threads;
  for (std::size_t w = 0; w < workers; ++w) {
    threads.push_back(std::async(std::launch::async, [&, w] {
      for (std::size_t i = next++; i < items; i = next++) work(w, i);
    }));
  }
  for (auto& thread : threads) thread.get();
}

/// Does `work` on a thread of its own and waits for it a second at most: for last words of a
/// process that is about to end, where the file system may be what hangs.
void try_within_a_second(std::function<void()> work);

}  // namespace tessera
