// A step over CUDA's streams, emulated: whatever the order in which streams go on, work comes after
// what it waits for; the first time, as a graph is recorded, and when that is launched again.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "memory/arena.hpp"
#include "memory/cuda/cuda_tier.hpp"
#include "streams/cuda/cuda_streams.hpp"
#include "support/emulator/streams.hpp"

namespace tessera::streams {
namespace {

/// A step of random work and waits, and what happens in it.
class RandomStep {
 public:
  /// With work of the host's, if so.
  explicit RandomStep(unsigned seed, bool by_host = false) : random_(seed) {
    std::array<std::int64_t, kStreams> queued{};
    for (int i = 0; i < 120; ++i) {
      Work work{.stream = pick(3) == 0 ? kCompute : pick(kStreams), .part = pick(4)};
      work.by_host = by_host && work.stream != kCompute && pick(2) == 0;
      for (std::size_t k = pick(3); k > 0; --k) {
        const std::size_t s = pick(kStreams);
        if (s == work.stream || queued[s] == 0) continue;
        const auto back = static_cast<std::int64_t>(pick(3));
        work.waits.push_back({s, std::max<std::int64_t>(1, queued[s] - back)});
      }
      ++queued[work.stream];
      works_.push_back(work);
    }
  }

  /// Queues it; each piece says whether all that it comes after had happened.
  void queue(CudaStreams& streams, CudaQueue& queue) {
    std::array<std::int64_t, kStreams> number{};
    for (const Work& work : works_) {
      const std::int64_t own = ++number[work.stream];
      const auto put = [&] {
        ASSERT_EQ(emulator::queue_work(queue.stream, [this, work, own] { happen(work, own); }),
                  cudaSuccess);
      };
      if (work.stream == kCompute) {
        streams.run(work, put);
      } else if (work.by_host) {
        streams.enqueue(work, [this, work, own] {
          ++by_host_;
          return std::make_unique<Turns>(pick(4), [this, work, own] { happen(work, own); });
        });
      } else {
        streams.enqueue(work, [&]() -> std::unique_ptr<Task> {
          put();
          return nullptr;
        });
      }
    }
  }

  void expect_all_happened() {
    std::size_t sum = 0;
    for (const std::int64_t n : happened_) sum += static_cast<std::size_t>(n);
    EXPECT_EQ(sum, works_.size());
    EXPECT_EQ(too_early_, 0);
    happened_ = {};
  }
  std::size_t size() const { return works_.size(); }
  /// Pieces of work that the host has begun.
  int by_host() const { return by_host_; }

 private:
  /// Work that takes some turns.
  class Turns : public Task {
   public:
    Turns(std::size_t turns, std::function<void()> work) : left_(turns), work_(std::move(work)) {}
    Progress advance() override {
      if (left_-- > 0) return left_ % 2 == 0 ? Progress::idle : Progress::some;
      work_();
      return Progress::done;
    }

   private:
    std::size_t left_;
    std::function<void()> work_;
  };
  std::size_t pick(std::size_t n) { return random_() % n; }
  void happen(const Work& work, std::int64_t own) {
    too_early_ += happened_[work.stream]++ != own - 1 ? 1 : 0;
    for (const Event& e : work.waits) too_early_ += happened_[e.stream] < e.count ? 1 : 0;
  }

  std::mt19937 random_;
  std::vector<Work> works_;
  std::array<std::int64_t, kStreams> happened_{};
  int too_early_ = 0, by_host_ = 0;
};

TEST(CudaStreams, KeepTheOrderQueuedRecordedAndRepeated) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    CudaQueue queue;
    CudaStreams streams(queue, std::make_unique<emulator::HostTasks>());
    RandomStep one(seed), other(seed + 1000);
    for (int round = 0; round < 4; ++round) {
      for (RandomStep* step : {&one, &other}) {
        const bool queued = streams.begin({.key = step, .works = step->size()});
        EXPECT_EQ(queued, round < 2) << "the third time it is launched as a graph";
        if (queued) step->queue(streams, queue);
        const Times t = streams.finish();
        step->expect_all_happened();
        double spent = 0;
        for (const double s : t.parts) spent += s;
        for (const double s : t.waited) spent += s;
        EXPECT_GT(spent, 0);
        EXPECT_LE(spent, t.total + 1e-6);
        EXPECT_TRUE(t.works.empty());
      }
    }
  }
}

TEST(CudaStreams, KeepTheOrderWithTheHostsWorkAmongIt) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    CudaQueue queue;
    CudaStreams streams(queue, std::make_unique<emulator::HostTasks>());
    RandomStep step(seed, true), of_gpu(seed + 1000);
    for (int round = 0; round < 4; ++round) {
      const Timing timing = round % 2 == 0 ? Timing::parts : Timing::works;
      ASSERT_TRUE(streams.begin(
          {.key = &step, .works = step.size(), .timing = timing, .repeatable = false}));
      step.queue(streams, queue);
      const Times t = streams.finish();
      step.expect_all_happened();
      EXPECT_EQ(t.works.size(), timing == Timing::works ? step.size() : 0);
      for (const Stretch& w : t.works) {
        EXPECT_GE(w.begin, 0);
        EXPECT_GE(w.end, w.begin);
        EXPECT_LE(w.end, t.total);
      }
      if (streams.begin({.key = &of_gpu, .works = of_gpu.size()})) of_gpu.queue(streams, queue);
      streams.finish();
      of_gpu.expect_all_happened();
    }
    EXPECT_GT(step.by_host(), 40);
  }
}

// The GPU's work that waits for the host's ends all the same, and the error comes out.
TEST(CudaStreams, EndWhereTheHostsWorkFails) {
  for (int round = 0; round < 20; ++round) {
    CudaQueue queue;
    CudaStreams streams(queue, std::make_unique<emulator::HostTasks>());
    ASSERT_TRUE(streams.begin({.works = 4, .repeatable = false}));
    streams.run({}, [] {});
    streams.enqueue({.stream = 2, .waits = {{.stream = kCompute, .count = 1}}, .by_host = true},
                    []() -> std::unique_ptr<Task> { throw IoError("a disk is broken"); });
    streams.enqueue({.stream = 3, .waits = {{.stream = 2, .count = 1}}, .by_host = true},
                    []() -> std::unique_ptr<Task> {
                      ADD_FAILURE() << "goes on without what it waits for";
                      return nullptr;
                    });
    streams.run({.waits = {{.stream = 3, .count = 1}}}, [] {});
    EXPECT_THROW(streams.finish(), IoError);
  }
}

/// A step of one piece of work on each stream, which notes the priority that it runs with.
std::array<int, kStreams> priorities_of_step(CudaStreams& streams, CudaQueue& queue,
                                             std::array<int, kStreams>& seen) {
  if (streams.begin({.key = &seen, .works = kStreams})) {
    for (std::size_t s = 0; s < kStreams; ++s) {
      const auto put = [&, s] {
        emulator::queue_work(queue.stream, [&seen, s] { seen[s] = emulator::running_priority(); });
      };
      if (s == kCompute) {
        streams.run({.stream = s}, put);
      } else {
        streams.enqueue({.stream = s}, [&]() -> std::unique_ptr<Task> {
          put();
          return nullptr;
        });
      }
    }
  }
  streams.finish();
  return std::exchange(seen, {});
}

// In a graph too: what others wait for goes first.
TEST(CudaStreams, KeepTheirPrioritiesInGraphs) {
  int least = 0, greatest = 0;
  ASSERT_EQ(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
  ASSERT_NE(least, greatest);
  std::array<int, kStreams> want{}, seen{};
  want.fill(greatest);
  want[kCompute] = least;
  CudaQueue queue;
  CudaStreams streams(queue, std::make_unique<emulator::HostTasks>());
  for (int round = 0; round < 4; ++round)
    EXPECT_EQ(priorities_of_step(streams, queue, seen), want) << "round " << round;
}

// NCCL is told that no graph is under way when something else is queued
// (NCCL_GRAPH_MIXING_SUPPORT).
TEST(CudaStreams, QueueNothingBesideAGraph) {
  CudaQueue queue;
  CudaStreams streams(queue, std::make_unique<emulator::HostTasks>());
  RandomStep step(10), other(11);
  for (int round = 0; round < 4; ++round) {
    for (RandomStep* s : {&step, &other}) {
      EXPECT_EQ(emulator::graphs_under_way(), 0);
      if (streams.begin({.key = s, .works = s->size()})) {
        EXPECT_EQ(emulator::graphs_under_way(), 0);
        s->queue(streams, queue);
      } else {
        EXPECT_EQ(emulator::graphs_under_way(), 1);
      }
      streams.finish();
      s->expect_all_happened();
    }
    ASSERT_TRUE(streams.begin({.key = &step, .works = step.size(), .repeatable = false}));
    EXPECT_EQ(emulator::graphs_under_way(), 0) << "a profiled step";
    step.queue(streams, queue);
    streams.finish();
    step.expect_all_happened();
  }
}

/// A step of random work in which a part stands twice, and the second time comes several times:
/// what happens, and whether all of it had happened that it waits for.
class RepeatedStep {
 public:
  explicit RepeatedStep(unsigned seed) : random_(seed) {
    pieces_.resize(static_cast<std::size_t>(end() + kTail));
    for (int i = 0; i < std::ssize(pieces_); ++i) {
      Piece& piece = pieces_[static_cast<std::size_t>(i)];
      if (i >= kSecond && i < end()) {
        piece = pieces_[static_cast<std::size_t>(i - kPart)];
        for (int& wait : piece.waits) wait += kPart;
        continue;
      }
      piece.stream = pick(3) == 0 ? kCompute : pick(kStreams);
      // The first copy waits for what the second has a counterpart of; what comes behind for
      // anything.
      const int least = i >= kFirst && i < kSecond ? kFirst - kPart : 0;
      for (std::size_t k = pick(3); k > 0 && i > least; --k) {
        const int wait = i - 1 - static_cast<int>(pick(static_cast<std::size_t>(i - least)));
        if (pieces_[static_cast<std::size_t>(wait)].stream != piece.stream)
          piece.waits.push_back(wait);
      }
    }
  }

  /// Returns how often each piece of the part was said.
  std::int64_t queue(CudaStreams& streams, CudaQueue& queue) {
    queued_.clear();
    counts_ = {};
    for (int i = 0; i < kSecond; ++i) say(streams, queue, i, 0);
    const std::int64_t times = streams.begin_repeat(kTimes);
    for (int r = 0; r < times; ++r)
      for (int i = kSecond; i < end(); ++i) say(streams, queue, i, r);
    streams.end_repeat();
    for (int i = end(); i < std::ssize(pieces_); ++i)
      say(streams, queue, i, static_cast<int>(times) - 1);
    return times;
  }

  void expect_all_happened() {
    std::map<std::size_t, int> last;  // run of each stream
    ASSERT_EQ(std::ssize(happened_), size());
    std::set<int> before;
    for (const int run : happened_) {
      const auto [piece, rep] = piece_of(run);
      const std::size_t stream = pieces_[static_cast<std::size_t>(piece)].stream;
      const auto it = last.find(stream);
      EXPECT_TRUE(it == last.end() || it->second < run) << run;
      last[stream] = run;
      for (const int wait : pieces_[static_cast<std::size_t>(piece)].waits)
        EXPECT_TRUE(before.contains(wait < kFirst ? wait : wait + rep * kPart)) << run;
      EXPECT_TRUE(before.insert(run).second) << run << " happens again";
    }
    happened_.clear();
    ran_.clear();
  }
  static std::int64_t size() { return end() + kTail + (kTimes - 1) * kPart; }

 private:
  static constexpr int kFirst = 40, kPart = 30, kTail = 25, kTimes = 5, kSecond = kFirst + kPart;
  static constexpr int end() { return kSecond + kPart; }
  struct Piece {
    std::size_t stream = kCompute;
    std::vector<int> waits;  // pieces
  };
  std::size_t pick(std::size_t n) { return random_() % n; }
  /// The piece of a run, and how often the part has come before.
  static std::pair<int, int> piece_of(int run) {
    const int rep = run < kSecond ? 0 : std::min((run - kSecond) / kPart, kTimes - 1);
    return {run - rep * kPart, rep};
  }
  void say(CudaStreams& streams, CudaQueue& queue, int piece, int rep) {
    const Piece& p = pieces_[static_cast<std::size_t>(piece)];
    Work work{.stream = p.stream};
    for (const int wait : p.waits) {
      const int run = wait < kFirst ? wait : wait + rep * kPart;
      work.waits.push_back({pieces_[static_cast<std::size_t>(wait)].stream, queued_.at(run)});
    }
    queued_[piece + rep * kPart] = ++counts_[p.stream];
    const auto put = [&] {
      ASSERT_EQ(emulator::queue_work(queue.stream, [this, piece] { happen(piece); }), cudaSuccess);
    };
    if (p.stream == kCompute) return streams.run(work, put);
    streams.enqueue(work, [&]() -> std::unique_ptr<Task> {
      put();
      return nullptr;
    });
  }
  void happen(int piece) {
    const int times = ran_[piece]++;
    const int rep = piece < kSecond ? 0 : piece < end() ? times : kTimes - 1;
    happened_.push_back(piece + rep * kPart);
  }

  std::mt19937 random_;
  std::vector<Piece> pieces_;
  std::map<int, std::int64_t> queued_;  // the number in its stream, by run
  std::array<std::int64_t, kStreams> counts_{};
  std::map<int, int> ran_;     // how often each piece has
  std::vector<int> happened_;  // runs
};

// What comes several times is recorded once and launched so often.
TEST(CudaStreams, LaunchWhatRepeats) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    CudaQueue queue;
    CudaStreams streams(queue, std::make_unique<emulator::HostTasks>());
    RepeatedStep step(seed);
    RandomStep other(seed + 1000);
    for (int round = 0; round < 5; ++round) {
      SCOPED_TRACE(fmt::format("seed {}, round {}", seed, round));
      const bool queued =
          streams.begin({.key = &step, .works = static_cast<std::size_t>(RepeatedStep::size())});
      EXPECT_EQ(queued, round < 2);
      const std::int64_t said = queued ? step.queue(streams, queue) : 0;
      EXPECT_EQ(said, round == 0 ? 5 : round == 1 ? 1 : 0);
      const Times t = streams.finish();
      step.expect_all_happened();
      double spent = 0;
      for (const double s : t.parts) spent += s;
      for (const double s : t.waited) spent += s;
      EXPECT_GT(spent, 0);
      EXPECT_LE(spent, t.total + 1e-6);
      if (streams.begin({.key = &other, .works = other.size()})) other.queue(streams, queue);
      streams.finish();
      other.expect_all_happened();
    }
  }
}

TEST(CudaStreams, TimeEveryPieceOfWork) {
  CudaQueue queue;
  CudaStreams streams(queue, std::make_unique<emulator::HostTasks>());
  RandomStep step(7);
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(streams.begin({.key = &step, .works = step.size(), .timing = Timing::works}));
    step.queue(streams, queue);
    const Times t = streams.finish();
    step.expect_all_happened();
    ASSERT_EQ(t.works.size(), step.size());
    for (const Stretch& w : t.works) {
      EXPECT_GE(w.begin, 0);
      EXPECT_GE(w.end, w.begin);
      EXPECT_LE(w.end, t.total);
    }
  }
}

TEST(CudaStreams, QueueStepsWithHooksEachTime) {
  CudaQueue queue;
  CudaStreams streams(queue, std::make_unique<emulator::HostTasks>());
  RandomStep step(8);
  for (int round = 0; round < 4; ++round) {
    ASSERT_TRUE(streams.begin({.key = &step, .works = step.size(), .repeatable = false}));
    step.queue(streams, queue);
    streams.finish();
    step.expect_all_happened();
  }
}

TEST(CudaStreams, EndAfterAnExceptionWhileRecording) {
  CudaQueue queue;
  RandomStep step(9);
  {
    CudaStreams streams(queue, std::make_unique<emulator::HostTasks>());
    for (int round = 0; round < 2; ++round) {
      ASSERT_TRUE(streams.begin({.key = &step, .works = step.size()}));
      if (round == 0) step.queue(streams, queue), streams.finish();
    }
    EXPECT_THROW(streams.run({.waits = {{.stream = 1, .count = 1}}}, [] {}), Error);
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << "it is recording still";
}

TEST(CudaStreams, LookWhileTheyWait) {
  int looks = 0, open_at = 3, gone_at = 1 << 30;  // a busy machine looks often
  bool happened = false;                          // at the latest as the streams end
  CudaQueue queue;
  CudaStreams streams(queue, std::make_unique<emulator::HostTasks>(), [&] {
    if (++looks == gone_at) throw CommError("a peer is gone");
  });
  const auto step = [&] {
    looks = 0;
    streams.begin({.works = 2, .repeatable = false});
    streams.enqueue({.stream = 1}, [&]() -> std::unique_ptr<Task> {
      emulator::queue_gate(queue.stream, [&] { return looks >= open_at; });
      return nullptr;
    });
    streams.run({.waits = {{.stream = 1, .count = 1}}},
                [&] { emulator::queue_work(queue.stream, [&] { happened = true; }); });
    streams.finish();
  };
  step();
  EXPECT_GE(looks, 3);
  EXPECT_TRUE(happened);
  open_at = 1000, gone_at = 60;
  EXPECT_THROW(step(), CommError);
  open_at = 0;  // it ends after all
}

TEST(CudaTier, CopiesAfterWhatIsQueued) {
  using memory::Arena, memory::CudaTier, memory::PinnedTier;
  CudaQueue queue;
  CudaStreams streams(queue, std::make_unique<emulator::HostTasks>());
  CudaTier tier(queue);
  PinnedTier pinned;
  const Arena device("device", tier, 1000), host("host", pinned, 1000);
  EXPECT_EQ(tier.in_place(device.base()), nullptr);
  EXPECT_EQ(pinned.in_place(host.base()), host.base());
  ASSERT_EQ(emulator::queue_work(queue.stream, [&] { device.base()[3] = std::byte{5}; }),
            cudaSuccess);
  EXPECT_EQ(device.base()[3], std::byte{0}) << "the emulator works at once";
  std::byte seen{};
  tier.read(device.base() + 3, {&seen, 1});
  EXPECT_EQ(seen, std::byte{5});
  tier.write(device.base() + 3, std::array{std::byte{6}});
  EXPECT_EQ(tier.start_copy(device.base(), host.base(), 1000), nullptr);
  EXPECT_EQ(host.base()[3], std::byte{0});
  ASSERT_EQ(cudaStreamSynchronize(queue.stream), cudaSuccess);
  EXPECT_EQ(host.base()[3], std::byte{6});
}

}  // namespace
}  // namespace tessera::streams
