// Threads beside the main one.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <exception>
#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/limits.hpp"

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
/// another within MPI or HDF5. `name`: at most 15 characters, for ps and debuggers. Throws
/// MemoryError when the system has no thread to give.
template <typename Work>
std::jthread start_thread(const char* name, Work&& work) {
  const SignalsBlocked inherited;
  std::jthread thread;
  try {
    thread = std::jthread(std::forward<Work>(work));
  } catch (const std::system_error& e) {
    thread_refused(std::string("the thread \"") + name + '"', e.code().value());
  }
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

/// Calls work(worker, item) for every item below `items`, on `workers` threads that each take the
/// next one; rethrows what one of them threw, once all have ended.
template <typename Work>
void in_turns(std::size_t workers, std::size_t items, Work&& work) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::exception_ptr> errors(workers);
  {
    const auto take_turns = [&](std::size_t w) {
      try {
        for (std::size_t i = next++; i < items; i = next++) work(w, i);
      } catch (...) {
        errors[w] = std::current_exception();
      }
    };
    std::vector<std::jthread> threads;  // joined at the end of this block
    try {
      threads.reserve(workers);
      for (std::size_t w = 0; w < workers; ++w)
        threads.push_back(start_thread("worker", [&take_turns, w] { take_turns(w); }));
    } catch (...) {
      next = items;  // those that are there finish their items
      throw;
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

/// Runs `work` on a thread of its own and waits for it, a second at most: for last words of a
/// process that is about to end, whose file system may hang. If there is no thread to be had, runs
/// it here; what `work` throws is lost.
void try_within_a_second(std::function<void()> work);

/// Throws MemoryError unless so many more threads can be there at once: for libraries that end the
/// process where they cannot start theirs, as OpenMP does.
void check_threads(int count);

}  // namespace tessera
