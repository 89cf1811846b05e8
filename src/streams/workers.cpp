#include "streams/workers.hpp"

#include "core/thread.hpp"

namespace tessera::streams {

class Workers::Waiting : public Task {
 public:
  explicit Waiting(std::shared_ptr<Job> job) : job_(std::move(job)) {}
  ~Waiting() override { job_->done.wait(false, std::memory_order_acquire); }
  Progress advance() override {
    if (!job_->done.load(std::memory_order_acquire)) return Progress::idle;
    if (job_->error) std::rethrow_exception(job_->error);
    return Progress::done;
  }

 private:
  std::shared_ptr<Job> job_;
};

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
}

std::unique_ptr<Task> Workers::start(std::function<void()> work) {
  const auto job = std::make_shared<Job>();
  job->work = std::move(work);
  auto task = std::make_unique<Waiting>(job);
  const std::lock_guard lock(mutex_);
  try {
    queue_.push_back(job);
    threads_.reserve(threads_.size() + 1);
    if (threads_.size() - busy_ < queue_.size() && threads_.size() < most_)
      threads_.push_back(start_thread("beside", [this] { serve(); }));
  } catch (...) {
    if (!queue_.empty() && queue_.back() == job) queue_.pop_back();
    job->done = true;  // nobody will do it
    throw;
  }
  work_.notify_one();
  return task;
}

void Workers::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const auto job = std::move(queue_.front());
    queue_.pop_front();
    ++busy_;
    lock.unlock();
    try {
      job->work();
    } catch (...) {
      job->error = std::current_exception();
    }
    job->work = nullptr;
    lock.lock();
    --busy_;
    job->done.store(true, std::memory_order_release);
    job->done.notify_all();
  }
}

}  // namespace tessera::streams
