// Streams on the CPU: FIFO queues of background work that one progress thread serves, and events
// that count completed work. The computing thread itself is the compute stream. (On a GPU the same
// plan uses CUDA streams and events.)
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera::memory {

/// What a call of Task::advance() achieved.
enum class Progress : std::uint8_t { idle, some, done };

/// Background work under way. advance() does a bounded amount of it and never blocks: `idle` when
/// there was nothing to do yet, `done` once all is.
class Task {
 public:
  virtual ~Task() = default;
  virtual Progress advance() = 0;
};

/// "The `count`-th piece of work ever queued on `stream` is complete."
struct Event {
  std::size_t stream = 0;
  std::int64_t count = 0;
};

class BackgroundStreams {
 public:
  static constexpr std::size_t kStreams = 4;

  BackgroundStreams();
  ~BackgroundStreams();
  BackgroundStreams(const BackgroundStreams&) = delete;
  BackgroundStreams& operator=(const BackgroundStreams&) = delete;

  /// Queues work: `start` is called on the progress thread once its stream's earlier work and
  /// `waits` are complete.
  Event enqueue(std::size_t stream, std::vector<Event> waits,
                std::function<std::unique_ptr<Task>()> start);
  /// Work that the caller has done itself on a stream of its own (the compute stream).
  Event complete(std::size_t stream);
  /// The event of what is queued so far.
  Event last(std::size_t stream) const { return {stream, queued_[stream]}; }
  /// Blocks until the event; rethrows what background work threw. Returns whether it had to wait.
  bool wait(Event event);

 private:
  struct Item {
    std::vector<Event> waits;
    std::function<std::unique_ptr<Task>()> start;
  };
  struct Lane {
    std::deque<Item> queue;      // guarded by mutex_
    std::unique_ptr<Task> task;  // progress thread only
  };
  void serve();
  Progress advance(Lane& lane, std::size_t stream);

  std::array<Lane, kStreams> lanes_;
  std::array<std::int64_t, kStreams> queued_{};  // the queuing thread only
  std::array<std::atomic<std::int64_t>, kStreams> done_{};
  std::mutex mutex_;
  std::condition_variable work_;
  std::int64_t outstanding_ = 0;  // queued and not done; guarded by mutex_
  bool stop_ = false;             // guarded by mutex_
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;  // set before failed_
  std::thread thread_;
};

/// Copies bytes in pieces, so that it shares the progress thread with communication.
std::unique_ptr<Task> make_copy_task(const std::byte* from, std::byte* to, std::int64_t bytes);

}  // namespace tessera::memory
