// ZeRO stages on real ranks: every stage computes the same bits, the same gradients as one rank up
// to the order of sums, and skips a step on all ranks alike.
#include <gtest/gtest.h>

#include <cstring>

#include "core/hash.hpp"
#include "kernels/cpu/device.hpp"
#include "support/blocks.hpp"
#include "support/plan_run.hpp"
#include "world.hpp"

namespace tessera::test {
namespace {

struct Case {
  model::ModelConfig config;
  DType compute = DType::f32, wire = DType::f32;
  int stage = 0;
  ReduceWhen reduce = ReduceWhen::step;
  std::int64_t micro_batches = 2;
  plan::PlanPurpose purpose = plan::PlanPurpose::train;
  std::optional<kernels::BlockFormat> weight_blocks = {}, gradient_blocks = {};
  std::int64_t block = 0;  // what travels in blocks is apart, even if nothing does
  std::int64_t per_node = 8;
  bool dealt = false;  // ranks go to nodes in turns, not as many as fill one
  bool error_feedback = false, stochastic = false;
  std::int64_t chunk_bytes = 1 << 20;
  std::optional<plan::ShardingInputs::Secondary> secondary = {};
};

class Zero : public testing::Test {
 protected:
  std::unique_ptr<PlanRun> make(const Case& c) {
    auto inputs = plan_inputs_of(c.config, *device_, c.compute);
    inputs.sharding.stage = c.stage;
    inputs.sharding.reduce = c.reduce;
    inputs.sharding.secondary = c.secondary;
    inputs.sharding.prefetch = c.secondary ? 0 : inputs.sharding.prefetch;  // gathers again
    inputs.numerics.wire = c.wire;
    inputs.state_for = c.purpose;
    inputs.optimizer = optim::adam();
    inputs.optimizer.weight_decay = 0.1F;
    inputs.optimizer.clip_norm = 0.5;
    inputs.layout.mesh.data = session().size();
    travel_in_blocks(inputs, c.weight_blocks, c.gradient_blocks);
    inputs.numerics.error_feedback = c.error_feedback;
    inputs.numerics.stochastic = c.stochastic;
    inputs.numerics.chunk_bytes = c.chunk_bytes;
    if (c.block > 0) inputs.model.units = model::model_units(c.config, 1, {.block = c.block});
    for (std::int64_t r = 0; r < session().size(); ++r)
      inputs.layout.node_of.push_back(
          static_cast<int>(c.dealt ? r % (session().size() / c.per_node) : r / c.per_node));
    train::Groups groups;
    if (session().size() > 1) {
      groups = train::make_groups(inputs, session().rank(),
                                  [](auto members, const auto& shape, comm::Traffic) {
                                    return comm::make_mpi_group(members, shape);
                                  });
    }
    auto run = std::make_unique<PlanRun>(
        inputs, *device_,
        plan::PlanShape{
            .purpose = c.purpose, .sequence = 6, .micro = 1, .micro_batches = c.micro_batches},
        std::move(groups), MeshPlace{.data = session().rank()});
    run->state().set_parameters(test_values(11));
    return run;
  }

  /// Of gpt2_like() in blocks of 32: the gradient of each rank's sample, as if it were alone, unit
  /// by unit.
  std::vector<std::vector<float>> gradients_of_ranks() {
    auto inputs = plan_inputs_of(gpt2_like(), *device_, DType::f32);
    inputs.model.units = model::model_units(gpt2_like(), 1, {.block = 32});
    PlanRun one(inputs, *device_, {.sequence = 6, .micro = 1, .micro_batches = 1});
    std::vector<std::vector<float>> all;
    for (std::int64_t r = 0; r < session().size(); ++r) {
      one.state().set_parameters(test_values(11));
      all.push_back(one.step(100 + r, {.lr = 0}).gradients);
    }
    return all;
  }
  /// How many of them are a unit's.
  static std::size_t elements_alone(std::size_t unit) {
    const auto units = model::model_units(gpt2_like(), 1, {.block = 32});
    return static_cast<std::size_t>(zero::unit_layout(units[unit], 1).padded);
  }

  static bool same_on_all_ranks(const std::vector<float>& values) {
    const std::uint64_t hash = hash_bytes(std::as_bytes(std::span(values)));
    const auto word = static_cast<std::int64_t>(hash >> 1);
    return control().min(word) == control().max(word);
  }

  std::unique_ptr<kernels::Device> device_ = kernels::make_cpu_device({});
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

std::vector<Case> cases() {
  auto gpt2 = gpt2_like(), llama = llama_like();
  gpt2.dropout = model::same_dropout(0.1F);
  return {{.config = gpt2},
          {.config = gpt2, .reduce = ReduceWhen::micro},
          {.config = gpt2, .wire = DType::bf16, .reduce = ReduceWhen::micro},
          {.config = llama, .compute = DType::bf16},
          {.config = llama, .compute = DType::bf16, .wire = DType::bf16, .micro_batches = 1}};
}

// Trap 35: stages differ in what they keep, not in what they compute. Traps 33 and 44: what all
// ranks hold is the same on all of them.
TEST_F(Zero, EveryStageHasTheSameBits) {
  for (Case c : cases()) {
    std::vector<float> expected;
    std::vector<StepShown> steps;
    for (c.stage = 0; c.stage <= 3; ++c.stage) {
      const auto run = make(c);
      for (int t = 1; t <= 3; ++t) {
        const StepShown step = run->step(100 * t, {.update = t});
        EXPECT_TRUE(step.applied);
        EXPECT_TRUE(
            same_on_all_ranks({static_cast<float>(step.loss), static_cast<float>(step.norm)}));
        if (c.stage == 0) {
          steps.push_back(step);
        } else {
          const auto at = static_cast<std::size_t>(t - 1);
          EXPECT_EQ(step.loss, steps[at].loss) << "stage " << c.stage << ", step " << t;
          EXPECT_EQ(step.norm, steps[at].norm) << "stage " << c.stage << ", step " << t;
        }
      }
      if (c.stage == 0) {
        expected = slice_of_state(*run);
        for (const auto& s : run->state().units())
          EXPECT_TRUE(same_on_all_ranks(widened(run->real(s.parameters))));
      } else {
        EXPECT_TRUE(same_bits(slice_of_state(*run), expected)) << "stage " << c.stage;
      }
    }
  }
}

// Bytes that cross between nodes once, and shards that the ranks of a node keep for the rest of the
// step: neighbours' sums are a subtree of the sum over all, where there are two to the power of
// something of them.
TEST_F(Zero, NodesAndSecondaryShardsChangeNoBit) {
  const std::int64_t size = session().size();
  if (size != 4 && size != 8) GTEST_SKIP() << "needs several nodes of several ranks";
  for (const bool blocks : {false, true}) {
    for (const auto reduce : {ReduceWhen::step, ReduceWhen::micro}) {
      Case c{.config = llama_like(), .stage = 3, .reduce = reduce};
      if (blocks) c.weight_blocks = kernels::BlockFormat{.block = 32};
      const auto outcome = [&] {
        const auto run = make(c);
        std::vector<float> all;
        for (int t = 1; t <= 2; ++t) {
          const StepShown step = run->step(100 * t, {.update = t});
          all.push_back(static_cast<float>(step.loss));
          all.push_back(static_cast<float>(step.norm));
        }
        const auto state = slice_of_state(*run);
        all.insert(all.end(), state.begin(), state.end());
        return all;
      };
      const auto want = outcome();
      for (const std::int64_t per_node : {2, 4}) {
        if (per_node == size) continue;
        c.per_node = per_node;
        c.secondary = {};
        EXPECT_TRUE(same_bits(outcome(), want)) << per_node << " ranks a node";
        for (std::int64_t ranks = 0; ranks < size; ranks = std::max<std::int64_t>(1, 2 * ranks)) {
          c.secondary = {.ranks = ranks};
          EXPECT_TRUE(same_bits(outcome(), want))
              << per_node << " ranks a node, secondary shards over " << ranks;
        }
      }
      c.per_node = 8;
    }
  }
}

// The same where ranks are dealt to nodes, but for the order of sums.
TEST_F(Zero, DealtRanksHaveSecondaryShardsToo) {
  if (session().size() != 4 && session().size() != 8)
    GTEST_SKIP() << "needs several nodes of several ranks";
  Case c{.config = gpt2_like(), .compute = DType::bf16, .stage = 3, .per_node = 2, .dealt = true};
  const auto one = make(c);
  c.secondary = plan::ShardingInputs::Secondary{};
  const auto other = make(c);
  for (int t = 1; t <= 2; ++t) {
    EXPECT_EQ(one->step(100 * t, {.update = t}).loss, other->step(100 * t, {.update = t}).loss);
  }
  EXPECT_TRUE(same_bits(slice_of_state(*one), slice_of_state(*other)));
}

// Traps 10, 35 and 36: raw gradients and their norm against one rank that computes all
// micro-batches itself. Sums are taken in another order: some 200 roundings along the longest path.
TEST_F(Zero, GradientsAreThoseOfOneRank) {
  for (auto reduce : {ReduceWhen::step, ReduceWhen::micro}) {
    for (int stage = 0; stage <= 3; ++stage) {
      Case c{.config = gpt2_like(), .stage = stage, .reduce = reduce};
      c.config.dropout = model::same_dropout(0.1F);
      const auto run = make(c);
      const StepShown step = run->step(100, {.lr = 0});
      PlanRun one(plan_inputs_of(c.config, *device_, c.compute), *device_,
                  {.sequence = 6, .micro = 1, .micro_batches = 2 * session().size()});
      one.state().set_parameters(test_values(11));
      const StepShown expected = one.step(100, {.lr = 0});
      const double tolerance = 200 * 0x1p-24 * expected.norm;
      EXPECT_NEAR(step.loss, expected.loss, 200 * 0x1p-24 * expected.loss);
      EXPECT_NEAR(step.norm, expected.norm, tolerance);
      EXPECT_GT(step.norm, 0.5) << "nothing would be clipped";
      std::size_t at = 0, begin = 0;
      for (std::size_t u = 0; u < run->state().units().size(); ++u) {
        const auto& s = run->state().units()[u];
        double worst = 0;
        for (std::int64_t i = s.owned.begin; i < s.owned.end; ++i, ++at) {
          const bool padding = i >= one.state().units()[u].layout.padded;
          const double theirs =
              padding ? 0 : expected.gradients.at(begin + static_cast<std::size_t>(i));
          worst = std::max(worst, std::abs(step.gradients.at(at) - theirs));
        }
        EXPECT_LE(worst, tolerance) << "unit " << u << ", stage " << stage;
        begin += static_cast<std::size_t>(one.state().units()[u].layout.padded);
      }
    }
  }
}

/// What rounding to blocks, once, may take from each of `values`, slots of n elements: half a step.
std::vector<double> half_steps(const std::vector<double>& values, std::int64_t n,
                               const kernels::BlockFormat& format) {
  const double q = format.type == kernels::BlockType::int8 ? 127 : 7;
  std::vector<double> all(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto slot = static_cast<std::int64_t>(i) / n * n,
               block = (static_cast<std::int64_t>(i) - slot) / format.block;
    const std::int64_t begin = slot + block * format.block,
                       end = std::min(begin + format.block, slot + n);
    double largest = 0;
    for (auto k = begin; k < end; ++k)
      largest = std::max(largest, std::abs(values[static_cast<std::size_t>(k)]));
    all[i] = largest / q / 2;
  }
  return all;
}

// ZeRO++: each contribution is rounded by half a step of its block at most; where there are two
// hops, each node's sum once more.
TEST_F(Zero, GradientsInBlocksAreWithinTheirRounding) {
  const std::int64_t size = session().size();
  if (size == 1) GTEST_SKIP() << "needs two ranks";
  const auto of_rank = gradients_of_ranks();
  for (const auto type : {kernels::BlockType::int8, kernels::BlockType::int4}) {
    const kernels::BlockFormat format{.type = type, .block = 32};
    for (const auto& [per_node, dealt] : std::vector<std::pair<std::int64_t, bool>>{
             {1, false}, {2, false}, {2, true}, {8, false}}) {
      const std::int64_t nodes = size / per_node;
      if (dealt && (nodes < 2 || size % per_node != 0)) continue;
      for (const auto reduce : {ReduceWhen::step, ReduceWhen::micro}) {
        for (int stage = 0; stage <= 3; ++stage) {
          const Case c{.config = gpt2_like(),
                       .stage = stage,
                       .reduce = reduce,
                       .micro_batches = 1,
                       .gradient_blocks = format,
                       .per_node = per_node,
                       .dealt = dealt};
          const auto run = make(c);
          const StepShown step = run->step(100, {.lr = 0});
          const bool two_hops = gradient_route(run->inputs(), run->place()).hops.size() == 2;
          std::size_t at = 0, begin = 0;
          double rounded = 0;
          for (std::size_t u = 0; u < run->state().units().size(); ++u) {
            const auto& s = run->state().units()[u];
            const bool in_blocks = run->inputs().model.units[u].traits.block > 0;
            const auto n = static_cast<std::size_t>(s.layout.padded);
            const auto alone = elements_alone(u);
            std::vector<double> sum(n), bound(n), of_node(n), largest(n);
            for (std::int64_t k = 0; k < size; ++k) {  // node by node
              const std::int64_t r = dealt ? k % per_node * nodes + k / per_node : k;
              std::vector<double> part(n);
              for (std::size_t i = 0; i < std::min(n, alone); ++i)
                part[i] =
                    of_rank[static_cast<std::size_t>(r)][begin + i] / static_cast<double>(size);
              const auto off =
                  in_blocks ? half_steps(part, s.layout.shard, format) : std::vector<double>(n);
              for (std::size_t i = 0; i < n; ++i) {
                sum[i] += part[i];
                bound[i] += off[i];
                of_node[i] += part[i];
                largest[i] += off[i];
              }
              if (!two_hops || !in_blocks || (k + 1) % per_node != 0) continue;
              for (std::size_t i = 0; i < n; ++i) largest[i] += std::abs(of_node[i]);
              const auto again = half_steps(largest, s.layout.shard, format);
              for (std::size_t i = 0; i < n; ++i) bound[i] += again[i];
              of_node.assign(n, 0), largest.assign(n, 0);
            }
            double worst = 0;  // of what it may be
            for (auto i = static_cast<std::size_t>(s.owned.begin);
                 i < static_cast<std::size_t>(s.owned.end); ++i, ++at) {
              const double off = std::abs(step.gradients.at(at) - sum[i]);
              worst = std::max(worst, off - bound[i] * (1 + 0x1p-6));
              rounded = std::max(rounded, off);
            }
            EXPECT_LE(worst, 200 * 0x1p-24 * step.norm)
                << "unit " << u << ", stage " << stage << ", " << per_node << " ranks a node"
                << (dealt ? ", dealt" : "");
            begin += alone;
          }
          EXPECT_GT(control().max(static_cast<std::int64_t>(rounded * 0x1p40)), 0)
              << "nothing was rounded";
        }
      }
    }
  }
}

// In whatever chunks: blocks, their errors and their random numbers are those of the whole.
TEST_F(Zero, ChunksChangeNoBits) {
  const kernels::BlockFormat int8{.block = 32}, int4{.type = kernels::BlockType::int4, .block = 32};
  for (const int stage : {0, 1, 3}) {
    for (const int per_node : {1, 2}) {
      const auto steps_with = [&](std::int64_t bytes) {
        const auto run = make({.config = gpt2_like(),
                               .stage = stage,
                               .reduce = stage < 3 ? ReduceWhen::step : ReduceWhen::micro,
                               .weight_blocks = stage == 3 ? std::optional(int8) : std::nullopt,
                               .gradient_blocks = int4,
                               .per_node = per_node,
                               .error_feedback = true,
                               .stochastic = true,
                               .chunk_bytes = bytes});
        std::vector<float> all;
        for (int t = 1; t <= 3; ++t) {
          const StepShown step = run->step(100 * t, {.lr = 1e-2, .update = t});
          all.push_back(static_cast<float>(step.loss));
          all.insert(all.end(), step.gradients.begin(), step.gradients.end());
        }
        return all;
      };
      const auto whole = steps_with(1 << 20);
      for (const std::int64_t bytes : {1, 1024, 5000})
        EXPECT_EQ(steps_with(bytes), whole) << "stage " << stage << ", chunks of " << bytes;
    }
  }
}

// Error feedback: of gradients that do not change, what all steps so far have lost is what the last
// one has. That is half a scale of each rank's numbers at most, which are its gradient's and as
// much again: h <= (m + h) / 14 of int4, so h <= m / 13; and bf16 has rounded it in each step.
// Without feedback roundings to the nearest lose the same each time.
TEST_F(Zero, ErrorsComeBackInTheNextStep) {
  const std::int64_t size = session().size();
  if (size == 1) GTEST_SKIP() << "needs two ranks";
  constexpr int kSteps = 12;
  const auto of_rank = gradients_of_ranks();
  const kernels::BlockFormat format{.type = kernels::BlockType::int4, .block = 32};
  for (const auto reduce : {ReduceWhen::step, ReduceWhen::micro}) {
    for (const int stage : {0, 3}) {
      for (const bool feedback : {false, true}) {
        const auto run = make({.config = gpt2_like(),
                               .stage = stage,
                               .reduce = reduce,
                               .micro_batches = 1,
                               .gradient_blocks = format,
                               .per_node = 1,
                               .error_feedback = feedback});
        std::vector<double> sum;
        double tolerance = 0;  // of a step, for other orders of sums
        for (int t = 1; t <= kSteps; ++t) {
          const StepShown step = run->step(100, {.lr = 0, .update = t});
          tolerance = 200 * 0x1p-24 * step.norm;
          sum.resize(step.gradients.size());
          for (std::size_t i = 0; i < sum.size(); ++i)
            sum[i] += static_cast<double>(step.gradients[i]);
        }
        if (feedback) {  // checkpoints have the sum of all ranks' errors
          double of_ranks = 0, summed = 0, size_of_all = 0;
          for (const auto& s : run->state().units()) {
            if (!s.errors) continue;
            for (const float x : run->values(s.errors)) of_ranks += x, size_of_all += std::abs(x);
            for (const float x : run->values(s.error_sum)) summed += x;
          }
          const double all = control().sum(size_of_all);
          EXPECT_GT(all, 0);
          EXPECT_NEAR(control().sum(summed), control().sum(of_ranks), all * 0x1p-22);
        }
        std::size_t at = 0, begin = 0;
        double beyond = 0;  // of what it may be
        for (std::size_t u = 0; u < run->state().units().size(); ++u) {
          const auto& s = run->state().units()[u];
          const auto n = static_cast<std::size_t>(s.layout.padded), alone = elements_alone(u);
          std::vector<double> exact(n), bound(n);
          for (const auto& gradient : of_rank) {
            std::vector<double> part(n);
            for (std::size_t i = 0; i < std::min(n, alone); ++i)
              part[i] = gradient[begin + i] / static_cast<double>(size);
            const auto half = half_steps(part, s.layout.shard, format);
            for (std::size_t i = 0; i < n; ++i)
              exact[i] += part[i], bound[i] += half[i] * 14 / 13 * (1 + kSteps * 0x1p-8);
          }
          const bool in_blocks = run->inputs().model.units[u].traits.block > 0;
          for (auto i = static_cast<std::size_t>(s.owned.begin);
               i < static_cast<std::size_t>(s.owned.end); ++i, ++at) {
            const double off = std::abs(sum[at] - kSteps * exact[i]) - kSteps * tolerance;
            if (in_blocks) beyond = std::max(beyond, off - bound[i]);
          }
          begin += alone;
        }
        const bool any = control().max(static_cast<std::int64_t>(beyond * 0x1p40)) > 0;
        EXPECT_NE(any, feedback) << "stage " << stage << ", off by " << beyond;
      }
    }
  }
}

// All ranks compute with the parameters that blocks give, their own too: with whole parameters
// rounded like that losses are the same. Blocks are those of the whole, however many ranks have
// parts of it.
TEST_F(Zero, ParametersInBlocksAreTheSameOnAllRanks) {
  if (session().size() == 1) GTEST_SKIP() << "needs two ranks";
  // Tensors begin where blocks of 32 do anyway, and not where those of 96 do.
  for (const auto& [compute, block] :
       {std::pair{DType::f32, 32}, {DType::f32, 96}, {DType::bf16, 32}}) {
    const kernels::BlockFormat format{.type = kernels::BlockType::int8, .block = block};
    Case c{.config = llama_like(), .compute = compute, .stage = 3};
    const auto plain = make(c);
    c.weight_blocks = format;
    const auto run = make(c);
    c.stage = 0, c.weight_blocks.reset(), c.block = format.block;
    const auto rounded = make(c);  // whole parameters, which are rounded here
    for (std::size_t u = 0; u < rounded->state().units().size(); ++u) {
      if (rounded->inputs().model.units[u].traits.block == 0) continue;
      const View all = rounded->real(rounded->state().units()[u].parameters);
      const std::int64_t n = all.elements();
      std::vector<std::uint8_t> code(static_cast<std::size_t>(format.bytes(n)));
      const View bytes(reinterpret_cast<std::byte*>(code.data()), DType::u8,
                       {1, 1, std::ssize(code)});
      device_->run(
          kernels::Quantize{.x = all.reshaped({1, 1, n}), .code = bytes, .format = format});
      device_->run(
          kernels::SumQuantized{.code = bytes, .out = all.reshaped({1, n}), .format = format});
    }
    const StepShown exact = plain->step(100, {.lr = 0}), got = run->step(100, {.lr = 0}),
                    want = rounded->step(100, {.lr = 0});
    EXPECT_EQ(got.loss, want.loss);
    EXPECT_EQ(got.norm, want.norm);
    EXPECT_NE(got.loss, exact.loss) << "nothing was rounded";
  }
}

// Traps 39 and 40: a gradient that is not finite on one rank alone is skipped by all of them; the
// next step is as if it had never been.
TEST_F(Zero, OneRanksOverflowIsSkippedByAll) {
  using Blocks = std::optional<kernels::BlockFormat>;
  const Blocks int4{{.type = kernels::BlockType::int4, .block = 32}};
  for (const auto& [blocks, feedback] : {std::pair{Blocks{}, false}, {int4, false}, {int4, true}}) {
    for (DType compute : {DType::f32, DType::bf16, DType::f16}) {
      for (int stage = 0; stage <= 3; ++stage) {
        const Case c{.config = llama_like(),
                     .compute = compute,
                     .stage = stage,
                     .gradient_blocks = blocks,
                     .per_node = blocks ? 2 : 8,
                     .error_feedback = feedback,
                     .stochastic = feedback};
        const auto spared = make(c);
        EXPECT_TRUE(spared->step(200, {}).applied);
        for (float bad :
             {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
          const auto hit = make(c);
          const auto before = slice_of_state(*hit);
          if (session().rank() == session().size() - 1) hit->spoil_next_gradient(bad);
          const StepShown step = hit->step(100, {});
          EXPECT_FALSE(step.applied) << "stage " << stage;
          EXPECT_FALSE(std::isfinite(step.norm));
          EXPECT_TRUE(same_bits(slice_of_state(*hit), before)) << "stage " << stage;
          EXPECT_TRUE(hit->step(200, {}).applied);
          EXPECT_TRUE(same_bits(slice_of_state(*hit), slice_of_state(*spared)))
              << "stage " << stage;
        }
      }
    }
  }
}

// Trap 49: a checkpoint that is copied beside a step holds what was there before it.
TEST_F(Zero, SnapshotsAreTheStateOfTheStepBefore) {
  for (DType compute : {DType::f32, DType::bf16}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const auto run = make({.config = gpt2_like(),
                             .compute = compute,
                             .stage = stage,
                             .purpose = plan::PlanPurpose::train_snapshot});
      for (int t = 1; t <= 3; ++t) {
        const auto before = slice_of_state(*run);
        EXPECT_TRUE(run->step(100 * t, {.update = t}).applied);
        EXPECT_TRUE(same_bits(slice_of_state(*run, Kept::snapshot), before))
            << "stage " << stage << ", step " << t;
        EXPECT_FALSE(same_bits(slice_of_state(*run), before));
      }
    }
  }
}

// A scale that makes f16 gradients overflow, and one that does not: the same update.
TEST_F(Zero, LossScaleIsTakenOutAgain) {
  for (int stage = 0; stage <= 3; ++stage) {
    const Case c{.config = llama_like(), .compute = DType::f16, .stage = stage};
    const auto run = make(c), plain = make(c);
    EXPECT_FALSE(run->step(100, {.loss_scale = 0x1p40}).applied);
    const StepShown scaled = run->step(100, {.loss_scale = 0x1p8});
    const StepShown unscaled = plain->step(100, {});
    EXPECT_TRUE(scaled.applied);
    EXPECT_EQ(scaled.loss, unscaled.loss);
    // Powers of two change no rounding but that of f16 denormals.
    EXPECT_NEAR(scaled.norm, unscaled.norm, 0x1p-10 * unscaled.norm);
  }
}

}  // namespace
}  // namespace tessera::test
