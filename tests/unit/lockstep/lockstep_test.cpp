// Whole jobs of several ranks under any order of streams and messages: the bits of a plain run, or
// a report that names the seed.
#include "support/lockstep.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "comm/transport_group.hpp"
#include "kernels/cpu/device.hpp"
#include "plan/check.hpp"
#include "plan/print.hpp"
#include "support/plan_run.hpp"

namespace tessera::test {
namespace {

using plan::ReduceWhen;

struct Case {
  std::int64_t ranks = 2;
  int stage = 3;
  ReduceWhen reduce = ReduceWhen::step;
  std::int64_t prefetch = 1, micro_batches = 2;
  comm::Sends sends = comm::Sends::buffered;
};

std::string name_of(const Case& c) {
  return fmt::format("{} ranks, stage {}, reduce every {}, prefetch {}, {} micro-batches, {} sends",
                     c.ranks, c.stage, enum_word(c.reduce), c.prefetch, c.micro_batches,
                     c.sends == comm::Sends::buffered ? "buffered" : "synchronous");
}

plan::PlanInputs inputs_of(const Case& c, kernels::Device& device) {
  auto inputs = plan_inputs_of(gpt2_like(), device, DType::f32);
  inputs.stage = c.stage;
  inputs.reduce = c.reduce;
  inputs.prefetch = c.prefetch;
  inputs.optimizer.clip_norm = 0.5;
  inputs.mesh.data = c.ranks;
  for (int r = 0; r < c.ranks; ++r) inputs.node_of.push_back(r);
  return inputs;
}

plan::PlanShape shape_of(const Case& c) {
  return {.purpose = plan::PlanPurpose::train,
          .sequence = 5,
          .micro = 1,
          .micro_batches = c.micro_batches};
}

/// What one rank's training computed: loss and norm of each step, and its slice of the state.
struct Outcome {
  std::vector<double> numbers;
  std::vector<float> state;
  bool operator==(const Outcome&) const = default;
};

testing::AssertionResult same_bits(const std::vector<Outcome>& ranks,
                                   const std::vector<Outcome>& expected) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto differ = [r](const char* what, const auto& a, const auto& b) {
      const auto at = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
      return testing::AssertionFailure()
             << what << " of rank " << r << " differ from element " << at.first - a.begin()
             << " on: " << *at.first << ", not " << *at.second;
    };
    if (ranks[r].numbers != expected[r].numbers)
      return differ("losses and norms", ranks[r].numbers, expected[r].numbers);
    if (ranks[r].state != expected[r].state)
      return differ("states", ranks[r].state, expected[r].state);
  }
  return testing::AssertionSuccess();
}

Outcome train(PlanRun& run, const StepNumbers& numbers = {}) {
  Outcome outcome;
  run.state().set_parameters(test_values(11));
  for (int t = 1; t <= 2; ++t) {
    StepNumbers of_step = numbers;
    of_step.update = t;
    const StepShown step = run.step(100 * t, of_step);
    outcome.numbers.insert(outcome.numbers.end(), {step.loss, step.norm});
  }
  for (const auto& s : run.state().units()) {
    const Range mine = s.layout.shard_of(run.place().data);
    for (const View* v : {&s.master, &s.m, &s.v}) {
      const auto part = widened(run.real(v->range(mine.begin - s.owned.begin, mine.count())));
      outcome.state.insert(outcome.state.end(), part.begin(), part.end());
    }
  }
  return outcome;
}

/// As in production, but for messages that are moved from memory to memory: a thread a rank, beside
/// it the thread of its background streams, and whatever order the machine makes of them.
std::vector<Outcome> plain_run(const Case& c) {
  comm::Loopback gather, reduce;
  std::vector<Outcome> outcomes(static_cast<std::size_t>(c.ranks));
  std::atomic<std::int64_t> left = c.ranks;
  std::vector<std::thread> threads;
  for (std::int64_t r = 0; r < c.ranks; ++r) {
    threads.emplace_back([&, r] {
      const auto device = kernels::make_cpu_device({});
      const auto inputs = inputs_of(c, *device);
      const auto group = [&](comm::Loopback& network) {
        return comm::make_transport_group(network.transport(static_cast<int>(r)),
                                          group_shape(inputs, {.data = r}, MeshGroup::data), r);
      };
      train::Groups groups;
      groups.gather = group(gather), groups.reduce = group(reduce), groups.world = group(reduce);
      PlanRun run(inputs, *device, shape_of(c), std::move(groups), {.data = r});
      outcomes[static_cast<std::size_t>(r)] = train(run);
      --left;
    });
  }
  while (left > 0) {
    for (comm::Loopback* network : {&gather, &reduce}) {
      for (const auto& m : network->under_way()) {
        if (m.may_be_taken) network->take(m.message);
        if (m.may_be_delivered) network->deliver(m.message);
      }
    }
    std::this_thread::yield();
  }
  for (auto& thread : threads) thread.join();
  return outcomes;
}

/// A job in lockstep, which can be run again as long as nothing went wrong.
class Job {
 public:
  /// `change` is applied to the plan of each rank.
  explicit Job(
      const Case& c, const std::function<void(plan::Plan& plan)>& change = [](plan::Plan&) {})
      : lockstep_(c.ranks, c.sends), device_(kernels::make_cpu_device({})) {
    const auto inputs = inputs_of(c, *device_);
    for (std::int64_t r = 0; r < c.ranks; ++r) {
      plan::Plan plan = plan::make_plan(inputs, shape_of(c), {.data = r});
      change(plan);
      runs_.push_back(std::make_unique<PlanRun>(inputs, *device_, std::move(plan),
                                                lockstep_.groups(r), lockstep_.streams(r)));
    }
  }
  /// What went wrong on each rank.
  std::vector<std::string> run(std::uint64_t seed, const StepNumbers& of_rank_1 = {}) {
    outcomes_.assign(runs_.size(), {});
    return lockstep_.run(seed, [&](std::int64_t r) {
      const auto rank = static_cast<std::size_t>(r);
      outcomes_[rank] = train(*runs_[rank], r == 1 ? of_rank_1 : StepNumbers{});
    });
  }
  const std::vector<Outcome>& outcomes() const { return outcomes_; }
  Lockstep& lockstep() { return lockstep_; }
  const PlanRun& rank(std::size_t r) const { return *runs_[r]; }

 private:
  Lockstep lockstep_;
  std::unique_ptr<kernels::Device> device_;
  std::vector<std::unique_ptr<PlanRun>> runs_;
  std::vector<Outcome> outcomes_;
};

std::vector<std::string> nothing_wrong(const Case& c) {
  return std::vector<std::string>(static_cast<std::size_t>(c.ranks));
}

class Layouts : public testing::TestWithParam<std::int64_t> {};

TEST_P(Layouts, HaveTheBitsOfAPlainRunInAnyOrder) {
  std::uint64_t seed = 0;
  Case c{.ranks = GetParam()};
  for (const auto reduce : {ReduceWhen::step, ReduceWhen::micro}) {
    c.reduce = reduce;
    for (c.micro_batches = 2; c.micro_batches <= 3; ++c.micro_batches) {
      c.stage = 0;
      const auto expected = plain_run(c);
      for (; c.stage <= 3; ++c.stage) {
        for (c.prefetch = 0; c.prefetch <= 2; ++c.prefetch) {
          for (const auto sends : {comm::Sends::buffered, comm::Sends::synchronous}) {
            c.sends = sends;
            SCOPED_TRACE(name_of(c));
            Job job(c);
            for (int i = 0; i < 7; ++i, ++seed) {
              ASSERT_EQ(job.run(seed), nothing_wrong(c));
              ASSERT_TRUE(same_bits(job.outcomes(), expected)) << "seed " << seed;
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Layouts, testing::Values(2, 3, 4));

TEST(Lockstep, MakesTheMovesOfItsSeed) {
  const Case c{.ranks = 3};
  Job job(c), again(c);
  ASSERT_EQ(job.run(5), nothing_wrong(c));
  const auto trace = job.lockstep().trace();
  ASSERT_EQ(job.run(6), nothing_wrong(c));
  EXPECT_NE(job.lockstep().trace(), trace);
  ASSERT_EQ(again.run(5), nothing_wrong(c));
  EXPECT_EQ(again.lockstep().trace(), trace);
}

TEST(Lockstep, ReportsADeadlockWithItsSeed) {
  using Move = Lockstep::Move;
  for (const plan::Stream stream : {plan::Stream::gather, plan::Stream::reduce}) {
    const auto lost = [&](const Move& m) {
      return m.what == Move::What::message_arrives && m.stream == stream && m.rank == 0 &&
             m.peer == 1 && m.number == 3;
    };
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const Case c{.ranks = 3};
      std::vector<std::string> first;
      std::vector<Move> trace;
      for (int again = 0; again < 2; ++again) {
        Job job(c);
        job.lockstep().prevent(lost);
        const auto wrong = job.run(seed);
        for (const std::string& w : wrong) {
          EXPECT_NE(w.find(fmt::format("deadlock with seed {}:", seed)), std::string::npos) << w;
          EXPECT_NE(w.find(fmt::format("message 3 of rank 0 to rank 1 on {} is sent and awaited",
                                       enum_word(stream))),
                    std::string::npos)
              << w;
        }
        if (again == 0) first = wrong, trace = job.lockstep().trace();
        EXPECT_EQ(wrong, first);
        EXPECT_EQ(job.lockstep().trace(), trace);
      }
    }
  }
}

// A rank that has stopped: the others come to a halt too, and nobody's report blames them.
TEST(Lockstep, ReportsARankThatStopped) {
  Job job({.ranks = 3});
  int moves = 0;
  job.lockstep().prevent([&](const Lockstep::Move& m) {
    return m.what == Lockstep::Move::What::rank_runs && m.rank == 2 && ++moves > 50;
  });
  for (const std::string& w : job.run(1))
    EXPECT_NE(w.find("rank 2 may not run"), std::string::npos) << w;
}

// The check rejects a plan without any one of its waits (Check.RejectsAPlanWithAnyWaitTakenAway).
// Those for background work show in the bits too, whatever op they are taken from: some order of
// moves is wrong without them. Waits for the compute stream cannot show on the CPU, where work is
// queued after the compute ops before it are done.
TEST(Lockstep, ShowsAnyMissingWaitForBackgroundWork) {
  constexpr std::uint64_t kSeeds = 100;
  int missing = 0;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const auto reduce : {ReduceWhen::step, ReduceWhen::micro}) {
      const Case c{.stage = stage, .reduce = reduce};
      const auto expected = plain_run(c);
      Job whole(c);
      const PlanRun& rank = whole.rank(0);
      const auto& ops = rank.plan().ops;
      for (std::size_t o = 0; o < ops.size(); ++o) {
        for (std::size_t w = 0; w < ops[o].waits.size(); ++w) {
          const auto& awaited = ops[static_cast<std::size_t>(ops[o].waits[w])];
          if (awaited.stream == plan::Stream::compute) continue;
          Job job(c, [&](plan::Plan& p) {
            p.ops[o].waits.erase(p.ops[o].waits.begin() + static_cast<std::ptrdiff_t>(w));
            EXPECT_THROW(plan::check(p), InternalError);
          });
          std::uint64_t seed = 0;
          while (seed < kSeeds && job.run(seed) == nothing_wrong(c) && job.outcomes() == expected)
            ++seed;
          EXPECT_LT(seed, kSeeds) << name_of(c) << ": " << plan::op_name(ops[o], rank.inputs())
                                  << " without its wait for "
                                  << plan::op_name(awaited, rank.inputs());
          ++missing;
        }
      }
    }
  }
  EXPECT_GT(missing, 50);
}

/// Applies `spoil` to the first collective of this kind of rank 1's plan.
template <typename Collective>
auto on_rank_1(std::function<void(Collective&)> spoil) {
  return [spoil](plan::Plan& plan) {
    if (plan.place.data != 1) return;
    for (plan::Op& op : plan.ops) {
      auto* any = std::get_if<comm::CollectiveCall>(&op.call);
      auto* call = any == nullptr ? nullptr : std::get_if<Collective>(any);
      if (call != nullptr) return spoil(*call);
    }
  };
}

void expect_start(const std::string& text, const std::string& start) {
  EXPECT_EQ(text.substr(0, start.size()), start);
}

TEST(Lockstep, NamesTheOpThatFailsOnItsRank) {
  const Case c{.ranks = 3};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    {  // as a background op starts
      Job job(c, on_rank_1<comm::ReduceScatter>(
                     [](auto& call) { call.staging = call.staging.range(0, 16); }));
      const auto wrong = job.run(seed);
      expect_start(wrong[1], "reduce_gradients reduce_scatter of ");
      expect_start(wrong[0], fmt::format("deadlock with seed {}:", seed));
      EXPECT_NE(wrong[0].find("rank 1 failed (reduce_gradients"), std::string::npos) << wrong[0];
    }
    {  // while it is under way: the peers find that a message has another size
      Job job(c, on_rank_1<comm::AllGather>([](auto& call) {
                call.shard = call.shard.range(0, call.shard.elements() / 2);
              }));
      const auto wrong = job.run(seed);
      for (const std::string& w : wrong) {
        expect_start(w, "gather all_gather of ");
        EXPECT_NE(w.find("were expected"), std::string::npos) << w;
      }
    }
    {  // on the compute stream
      Job job(c);
      expect_start(job.run(seed, {.unknown_token_in = 1})[1], "kernel ");
    }
  }
}

}  // namespace
}  // namespace tessera::test
