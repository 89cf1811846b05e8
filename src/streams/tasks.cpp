#include "streams/tasks.hpp"

#include <algorithm>
#include <atomic>
#include <exception>

#include "core/thread.hpp"

namespace tessera::streams {
namespace {

class CopyTask : public Task {
 public:
  CopyTask(const std::byte* from, std::byte* to, std::int64_t bytes)
      : from_(from), to_(to), left_(bytes) {}
  Progress advance() override {
    const std::int64_t n = std::min<std::int64_t>(left_, 1 << 20);
    std::copy_n(from_, n, to_);  // of no bytes, too, which may be nowhere
    from_ += n, to_ += n, left_ -= n;
    return left_ == 0 ? Progress::done : Progress::some;
  }

 private:
  const std::byte* from_;
  std::byte* to_;
  std::int64_t left_;
};

/// Work of another thread, which is waited for when the task goes early.
class ThreadTask : public Task {
 public:
  explicit ThreadTask(std::function<void()> work)
      : thread_(start_thread("beside", [this, work = std::move(work)] {
          try {
            work();
          } catch (...) {
            error_ = std::current_exception();
          }
          done_.store(true, std::memory_order_release);
        })) {}
  Progress advance() override {
    if (!done_.load(std::memory_order_acquire)) return Progress::idle;
    if (error_) std::rethrow_exception(error_);
    return Progress::done;
  }

 private:
  std::exception_ptr error_;
  std::atomic<bool> done_ = false;
  std::jthread thread_;  // the last: it uses the others
};

}  // namespace

std::unique_ptr<Task> make_copy_task(const std::byte* from, std::byte* to, std::int64_t bytes) {
  return std::make_unique<CopyTask>(from, to, bytes);
}

std::unique_ptr<Task> make_thread_task(std::function<void()> work) {
  return std::make_unique<ThreadTask>(std::move(work));
}

}  // namespace tessera::streams
