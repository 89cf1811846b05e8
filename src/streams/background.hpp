// Streams on the CPU: one progress thread serves them all. (On a GPU the same plan uses CUDA
// streams and events.)
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "streams/tasks.hpp"

namespace tessera::streams {

class BackgroundStreams : public TaskStreams {
 public:
  BackgroundStreams();
  ~BackgroundStreams() override;
  BackgroundStreams(const BackgroundStreams&) = delete;
  BackgroundStreams& operator=(const BackgroundStreams&) = delete;

  Event enqueue(std::size_t stream, std::vector<Event> waits, Start start) override;
  Event complete(std::size_t stream) override;
  Event last(std::size_t stream) const override { return {stream, queued_[stream]}; }
  bool wait(Event event) override;

 private:
  struct Item {
    std::vector<Event> waits;
    Start start;
  };
  struct Lane {
    std::deque<Item> queue;      // guarded by mutex_
    std::unique_ptr<Task> task;  // progress thread only
  };
  void serve();
  Progress advance(Lane& lane, std::size_t stream);
  /// Once around all streams; whether no task advanced.
  bool passes_idle();

  std::array<Lane, kStreams> lanes_;
  std::array<std::int64_t, kStreams> queued_{};  // the queuing thread only
  std::array<std::atomic<std::int64_t>, kStreams> done_{};
  std::mutex mutex_;
  std::condition_variable work_;
  std::int64_t outstanding_ = 0;      // queued and not done; guarded by mutex_
  bool stop_ = false;                 // guarded by mutex_
  std::atomic<bool> awaited_{false};  // the computing thread does nothing until a task is done
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;  // set before failed_
  std::jthread thread_;       // last: it uses the others
};

}  // namespace tessera::streams
