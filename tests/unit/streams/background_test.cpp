// Background streams: order within a stream, waits across streams, errors. Built with
// TESSERA_SANITIZE=thread these tests also look for races.
#include "streams/background.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

#include "streams/workers.hpp"

namespace tessera::streams {
namespace {

/// Calls `done` in its last of `steps` advances.
class Steps : public Task {
 public:
  Steps(int steps, std::function<void()> done) : left_(steps), done_(std::move(done)) {}
  Progress advance() override {
    if (--left_ > 0) return left_ % 2 == 0 ? Progress::some : Progress::idle;
    done_();
    return Progress::done;
  }

 private:
  int left_;
  std::function<void()> done_;
};

auto task(int steps, std::function<void()> done) {
  return [steps, done = std::move(done)]() -> std::unique_ptr<Task> {
    return std::make_unique<Steps>(steps, done);
  };
}

TEST(BackgroundStreams, KeepOrderWithinAStream) {
  std::vector<int> order;
  BackgroundStreams streams;
  for (int i = 0; i < 100; ++i)
    streams.enqueue(1, {}, task(1 + i % 3, [&order, i] { order.push_back(i); }));
  streams.wait(streams.last(1));
  ASSERT_EQ(order.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

/// Advances in every other call, in between which it notes how long it was not called.
class Intervals : public Task {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Intervals(std::vector<Clock::duration>& idle) : idle_(idle) {}
  Progress advance() override {
    const Clock::time_point now = Clock::now();
    if (++calls_ % 2 == 0) idle_.push_back(now - last_);
    last_ = now;
    if (idle_.size() == 1000) return Progress::done;
    return calls_ % 2 == 0 ? Progress::some : Progress::idle;
  }

 private:
  std::vector<Clock::duration>& idle_;
  Clock::time_point last_ = Clock::now();
  int calls_ = 0;
};

// A nap takes 20 us at least, however quick the machine; without naps some interval is shorter,
// however slow it is.
TEST(BackgroundStreams, NapOnlyWhileNobodyWaits) {
  for (const bool waits : {false, true}) {
    std::vector<Intervals::Clock::duration> idle;
    std::atomic<bool> done = false;
    BackgroundStreams streams;
    streams.enqueue(1, {}, [&] { return std::make_unique<Intervals>(idle); });
    const Event end = streams.enqueue(1, {}, task(1, [&] { done = true; }));
    while (!waits && !done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    streams.wait(end);
    const auto shortest = *std::ranges::min_element(idle);
    EXPECT_EQ(shortest < std::chrono::microseconds(20), waits);
  }
}

TEST(BackgroundStreams, WaitForOtherStreams) {
  int value = 0;
  bool seen = false;
  BackgroundStreams streams;
  const Event slow = streams.enqueue(1, {}, task(50, [&] { value = 7; }));
  const Event reader = streams.enqueue(2, {slow}, task(1, [&] { seen = value == 7; }));
  streams.wait(reader);
  EXPECT_TRUE(seen);
}

TEST(BackgroundStreams, TakeWorkThatIsDoneOnceItIsStarted) {
  std::vector<int> order;
  BackgroundStreams streams;
  for (int i = 0; i < 20; ++i) {
    streams.enqueue(1, {}, [&order, i]() -> std::unique_ptr<Task> {
      order.push_back(i);
      return i % 2 == 0 ? nullptr : std::make_unique<Steps>(2, [] {});
    });
  }
  streams.wait(streams.last(1));
  ASSERT_EQ(order.size(), 20U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

// A waiting stream must not keep the others from going on.
TEST(BackgroundStreams, WaitForWorkOfTheCaller) {
  bool ran = false;
  BackgroundStreams streams;
  const Event compute{0, streams.last(0).count + 1};
  const Event blocked = streams.enqueue(1, {compute}, task(1, [&] { ran = true; }));
  streams.wait(streams.enqueue(2, {}, task(3, [] {})));
  EXPECT_FALSE(ran);
  streams.complete(0);
  streams.wait(blocked);
  EXPECT_TRUE(ran);
}

TEST(BackgroundStreams, SayWhetherTheCallerHadToWait) {
  BackgroundStreams streams;
  const Event e = streams.enqueue(1, {}, task(1, [] {}));
  streams.wait(e);
  EXPECT_FALSE(streams.wait(e));
}

TEST(BackgroundStreams, ThrowInWaitWhatATaskThrew) {
  BackgroundStreams streams;
  streams.enqueue(1, {}, task(2, [] { throw std::runtime_error("lost a peer"); }));
  const Event never = streams.enqueue(2, {{1, 1}}, task(1, [] {}));
  for (int again = 0; again < 2; ++again) {
    try {
      streams.wait(never);
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& e) {
      EXPECT_STREQ(e.what(), "lost a peer");
    }
  }
}

TEST(BackgroundStreams, ThrowInWaitWhatAStartThrew) {
  BackgroundStreams streams;
  const Event e = streams.enqueue(
      3, {}, []() -> std::unique_ptr<Task> { throw std::runtime_error("cannot start"); });
  EXPECT_THROW(streams.wait(e), std::runtime_error);
}

// A stream whose work another thread does waits for it; the others go on meanwhile.
TEST(Workers, LeaveOtherStreamsAlone) {
  Workers workers;
  std::atomic<bool> go = false;
  int order = 0, of_thread = 0, of_other = 0;
  BackgroundStreams streams;
  streams.enqueue(1, {}, [&] {
    return workers.start([&] {
      go.wait(false);
      of_thread = 1;
    });
  });
  streams.enqueue(1, {}, task(1, [&] { order = of_thread; }));
  streams.enqueue(2, {}, task(5, [&] { of_other = 1; }));
  streams.wait(streams.last(2));
  EXPECT_EQ(of_other, 1);
  go = true;
  go.notify_all();
  streams.wait(streams.last(1));
  EXPECT_EQ(order, 1);
}

TEST(Workers, ThrowInWaitWhatTheirWorkThrew) {
  Workers workers;
  BackgroundStreams streams;
  streams.enqueue(1, {}, [&] { return workers.start([] { throw std::runtime_error("here"); }); });
  EXPECT_THROW(streams.wait(streams.last(1)), std::runtime_error);
}

/// A number that no other thread has had or gets.
int number_of_thread() {
  static std::atomic<int> next{0};
  thread_local const int own = next++;
  return own;
}

// A team that a library keeps for a thread is there for the next work.
TEST(Workers, AreTheSameThreadsAgain) {
  Workers workers;
  std::set<int> one_by_one, at_once;
  for (int i = 0; i < 20; ++i) {
    const auto task = workers.start([&] { one_by_one.insert(number_of_thread()); });
    while (task->advance() != Progress::done) std::this_thread::yield();
  }
  EXPECT_EQ(one_by_one.size(), 1);
  std::mutex mutex;
  std::barrier all(4);
  for (int i = 0; i < 20; ++i) {
    std::vector<std::unique_ptr<Task>> tasks;
    for (int k = 0; k < 4; ++k) {
      tasks.push_back(workers.start([&] {
        all.arrive_and_wait();  // each has a thread
        const std::lock_guard lock(mutex);
        at_once.insert(number_of_thread());
      }));
    }
  }
  EXPECT_EQ(at_once.size(), 4);
}

TEST(Workers, AreNoMoreThanAllowed) {
  Workers workers(2);
  std::atomic<int> now = 0, most = 0, done = 0;
  std::vector<std::unique_ptr<Task>> tasks;
  for (int i = 0; i < 12; ++i) {
    tasks.push_back(workers.start([&] {
      const int at_once = ++now;
      for (int seen = most; seen < at_once && !most.compare_exchange_weak(seen, at_once);) {
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      --now, ++done;
    }));
  }
  tasks.clear();  // waits
  EXPECT_EQ(done, 12);
  EXPECT_EQ(most, 2);
}

TEST(Workers, EndTheirWorkBeforeItsTaskGoes) {
  Workers workers;
  bool ended = false;
  workers.start([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ended = true;
  });
  EXPECT_TRUE(ended);
}

TEST(BackgroundStreams, EndWithWorkStillQueued) {
  BackgroundStreams streams;
  streams.enqueue(1, {{0, 1'000}}, task(1, [] { FAIL() << "its wait never came true"; }));
}

// Thousands of tasks with random waits on earlier work of all streams, the caller's own included:
// each checks when it runs that what it waited for has happened.
TEST(BackgroundStreams, RunRandomGraphsInOrder) {
  std::mt19937 random(3);
  const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(random()) % n; };
  std::array<std::int64_t, kStreams> happened{};  // guarded by the events
  std::atomic<int> early{0};
  BackgroundStreams streams;
  for (int i = 0; i < 5'000; ++i) {
    const std::size_t stream = pick(kStreams);
    std::vector<Event> waits;
    for (std::size_t s = 0; s < kStreams; ++s) {
      const Event last = streams.last(s);
      if (s != stream && last.count > 0 && pick(3) == 0)
        waits.push_back({s, last.count - static_cast<std::int64_t>(pick(2)) * (last.count > 1)});
    }
    const auto run = [&happened, &early, waits, stream] {
      // Only streams that were waited for may be looked at: others may be changing.
      for (const Event& e : waits) {
        std::atomic_ref count(happened[e.stream]);
        if (count.load(std::memory_order_relaxed) < e.count) ++early;
      }
      std::atomic_ref(happened[stream]).fetch_add(1, std::memory_order_relaxed);
    };
    if (stream == 0) {
      for (const Event& e : waits) streams.wait(e);
      run();
      streams.complete(0);
    } else {
      streams.enqueue(stream, waits, task(1 + static_cast<int>(pick(3)), run));
    }
  }
  for (std::size_t s = 0; s < kStreams; ++s) {
    streams.wait(streams.last(s));
    EXPECT_EQ(happened[s], streams.last(s).count);
  }
  EXPECT_EQ(early, 0);
}

// Plain memory handed from stream to stream: an event makes what was written before it visible.
TEST(BackgroundStreams, EventsMakeWritesVisible) {
  std::vector<int> data(64);
  BackgroundStreams streams;
  Event last{};
  for (int round = 0; round < 500; ++round) {
    const std::size_t stream = 1 + static_cast<std::size_t>(round % 3);
    last = streams.enqueue(stream, {last}, task(1, [&data] {
                             for (int& x : data) ++x;
                           }));
    if (round % 50 != 49) continue;
    streams.wait(last);
    for (int x : data) ASSERT_EQ(x, round + 1);
    for (int& x : data) x = round + 1;
    last = streams.complete(0);
  }
}

TEST(CopyTask, CopiesEverySize) {
  for (std::int64_t bytes : {0, 1, 4095, (1 << 20) - 1, 1 << 20, (3 << 20) + 17}) {
    std::vector<std::byte> from(static_cast<std::size_t>(bytes)), to(from.size() + 1);
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7);
    to.back() = std::byte{99};
    const auto copy = make_copy_task(from.data(), to.data(), bytes);
    while (copy->advance() != Progress::done) {
    }
    EXPECT_EQ(to.back(), std::byte{99});
    to.pop_back();
    EXPECT_EQ(from, to) << bytes;
  }
}

}  // namespace
}  // namespace tessera::streams
