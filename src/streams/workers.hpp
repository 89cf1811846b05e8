// Threads that do what would block a progress thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "streams/tasks.hpp"

namespace tessera::streams {

/// There are as many threads as there was ever work at once, `most` at most: further work waits for
/// one of them. They stay: what a thread has of its own, such as a team of OpenMP, is there for its
/// next work.
class Workers {
 public:
  explicit Workers(std::size_t most = std::numeric_limits<std::size_t>::max()) : most_(most) {}
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Begins `work` on a thread. What it throws, advance() rethrows; where the task goes
  /// before it is done, the work is waited for. Throws MemoryError when the system has no thread to
  /// give.
  std::unique_ptr<Task> start(std::function<void()> work);

 private:
  struct Job {
    std::function<void()> work;
    std::exception_ptr error;  // set before done
    std::atomic<bool> done = false;
  };
  class Waiting;
  void serve();

  const std::size_t most_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<std::shared_ptr<Job>> queue_;  // guarded by mutex_
  std::size_t busy_ = 0;                    // threads that are at work; guarded by mutex_
  bool stop_ = false;                       // guarded by mutex_
  std::vector<std::jthread> threads_;       // guarded by mutex_
};

}  // namespace tessera::streams
