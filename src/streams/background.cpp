#include "streams/background.hpp"

#include <algorithm>
#include <chrono>
#include <limits>

#include "core/thread.hpp"

namespace tessera::streams {

using namespace std::chrono_literals;

BackgroundStreams::BackgroundStreams() : thread_(start_thread("progress", [this] { serve(); })) {}

BackgroundStreams::~BackgroundStreams() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_one();
  thread_.join();
}

Event BackgroundStreams::enqueue(std::size_t stream, std::vector<Event> waits, Start start) {
  {
    const std::lock_guard lock(mutex_);
    lanes_[stream].queue.push_back({std::move(waits), std::move(start)});
    ++outstanding_;
  }
  work_.notify_one();
  return {stream, ++queued_[stream]};
}

Event BackgroundStreams::complete(std::size_t stream) {
  done_[stream].store(++queued_[stream], std::memory_order_release);
  return {stream, queued_[stream]};
}

bool BackgroundStreams::wait(Event event) {
  auto& done = done_[event.stream];
  std::int64_t seen = done.load(std::memory_order_acquire);
  const bool had_to = seen < event.count;
  if (had_to) {
    {
      const std::lock_guard lock(mutex_);
      awaited_ = true;
    }
    work_.notify_one();
    while (seen < event.count) {
      done.wait(seen, std::memory_order_acquire);
      seen = done.load(std::memory_order_acquire);
    }
    awaited_ = false;
  }
  if (failed_.load(std::memory_order_acquire)) std::rethrow_exception(error_);
  return had_to;
}

Progress BackgroundStreams::advance(Lane& lane, std::size_t stream) {
  if (!lane.task) {
    Item item;
    {
      const std::lock_guard lock(mutex_);
      if (lane.queue.empty()) return Progress::idle;
      for (const Event& e : lane.queue.front().waits) {
        if (done_[e.stream].load(std::memory_order_acquire) < e.count) return Progress::idle;
      }
      item = std::move(lane.queue.front());
      lane.queue.pop_front();
    }
    lane.task = item.start();
  }
  if (lane.task) {
    if (const Progress progress = lane.task->advance(); progress != Progress::done) return progress;
    lane.task.reset();
  }
  {
    const std::lock_guard lock(mutex_);
    --outstanding_;
  }
  done_[stream].fetch_add(1, std::memory_order_release);
  done_[stream].notify_all();
  return Progress::done;
}

bool BackgroundStreams::passes_idle() {
  bool idle = true;
  for (std::size_t s = 0; s < kStreams; ++s) {
    Progress progress{};
    do {
      progress = advance(lanes_[s], s);
      idle = idle && progress == Progress::idle;
    } while (progress == Progress::done);
  }
  return idle;
}

void BackgroundStreams::serve() {
  // The computing thread may be on the same core, so polling must take little of it: the thread
  // sleeps, for longer while no task advances. While the computing thread waits for it, it only
  // lets others go first, until no task has advanced for so long that its messages are not under
  // way.
  using Clock = std::chrono::steady_clock;
  constexpr auto kShortest = 20us, kLongest = 200us, kUnderWay = 100us;
  auto nap = kShortest;
  Clock::time_point advanced = Clock::now();
  bool was_awaited = false;
  try {
    while (true) {
      {
        std::unique_lock lock(mutex_);
        work_.wait(lock, [this] { return stop_ || outstanding_ > 0; });
        if (stop_) return;
      }
      const bool awaited = awaited_, idle = passes_idle();
      if (!idle || (awaited && !was_awaited)) advanced = Clock::now(), nap = kShortest;
      was_awaited = awaited;
      if (!idle) continue;
      if (awaited && Clock::now() - advanced < kUnderWay) {
        std::this_thread::yield();
        continue;
      }
      std::unique_lock lock(mutex_);
      work_.wait_for(lock, nap, [&] { return stop_ || (awaited_ && !awaited); });
      nap = std::min(2 * nap, kLongest);
    }
  } catch (...) {
    error_ = std::current_exception();
    failed_.store(true, std::memory_order_release);
    for (auto& done : done_) {
      done.store(std::numeric_limits<std::int64_t>::max(), std::memory_order_release);
      done.notify_all();
    }
  }
}

}  // namespace tessera::streams
