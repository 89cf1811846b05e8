// Plans of 1-bit Adam and 1-bit LAMB: momentum travels in place of gradients.
#include <gtest/gtest.h>

#include "plan/passes/blocks.hpp"
#include "unit/plan/cases.hpp"

namespace tessera::plan {
namespace {

using kernels::BlockType;

constexpr std::int64_t kBlock = 32;
constexpr std::array kCompressions = {Compression::none, Compression::begins, Compression::on};

enum class Rule : std::uint8_t { adam, lamb };

/// The case with 1-bit Adam or 1-bit LAMB.
void compress(Case& c, Rule rule, Compression compression, std::int64_t tiles = 1) {
  c.inputs.optimizer = rule == Rule::adam ? optim::onebit_adam({.after = 3, .block = kBlock})
                                          : optim::onebit_lamb({.after = 3, .block = kBlock});
  c.inputs.numerics.error_feedback = true;
  c.inputs.numerics.chunk_bytes = kSmallChunk;
  test::travel_in_blocks(c.inputs, {}, {{.type = BlockType::sign, .block = kBlock}}, tiles);
  c.shape.compression = compression;
}

Case compressed(int stage, Compression compression, std::vector<int> nodes = {},
                Rule rule = Rule::adam) {
  Case c = make_case(stage, 4, 2, ReduceWhen::step);
  c.inputs.layout.node_of = std::move(nodes);
  c.inputs.state_for = PlanPurpose::train_snapshot;
  compress(c, rule, compression);
  return c;
}

TEST(CompressedMomentum, IsProvedOnRandomLayouts) {
  std::mt19937 random(21);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int i = 0; i < 300; ++i) {
    Case c = random_case(random);
    if (c.inputs.numerics.layout_mode || c.shape.purpose == PlanPurpose::evaluate) continue;
    c.inputs.sharding = {.stage = pick(3),
                         .reduce = c.inputs.sharding.reduce,
                         .prefetch = c.inputs.sharding.prefetch};
    c.inputs.numerics.weight_blocks = {};
    c.inputs.numerics.stochastic = false;
    const std::int64_t tiles = c.inputs.layout.tensor_chunks / c.inputs.layout.mesh.tensor;
    const auto place = [&] { return static_cast<Location>(pick(3)); };
    if (pick(2) == 0)
      c.inputs.offload = {.parameters = place(),
                          .gradients = place(),
                          .optimizer = place(),
                          .ahead = pick(3),
                          .device_is_host = pick(2) == 0};
    compress(c, static_cast<Rule>(pick(2)), at(kCompressions, pick(3)), tiles);
    if (pick(3) == 0) c.inputs.optimizer = optim::with_ema(c.inputs.optimizer, 0.9);
    SCOPED_TRACE(i);
    expect_proved(c);
    c.shape = flush_after(c.shape.compression);
    expect_proved(c);
  }
}

// Each op of momentum's way is needed, but for those that clear padding, whose value no element
// depends on.
TEST(CompressedMomentum, IsRejectedWithoutAnyOfItsOps) {
  for (const std::vector<int>& nodes : {std::vector<int>{}, {0, 0, 1, 1}}) {
    for (const int stage : {0, 1, 2}) {
      for (const Compression compression : {Compression::begins, Compression::on}) {
        for (const auto& [purpose, rule] : {std::pair{PlanPurpose::train, Rule::lamb},
                                            std::pair{PlanPurpose::train_snapshot, Rule::adam}}) {
          Case c = compressed(stage, compression, nodes, rule);
          c.shape.purpose = purpose;
          const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
          const auto broken = without_each(plan, OpKind::momentum);
          EXPECT_GT(broken.size(), 20);
          std::size_t i = 0;
          for (const Op& op : plan.ops) {
            if (op.kind != OpKind::momentum) continue;
            const bool clears = op.unit >= 0 && call_name(op.call) == kernels::Fill::kName;
            const Plan& without = broken[i++];
            if (!clears) {
              EXPECT_THROW(check(without), InternalError) << i << " of stage " << stage;
            }
          }
        }
      }
    }
  }
}

/// f of each op of momentum of this type; the plans that it spoils.
template <typename Operation, typename F>
std::vector<Plan> spoilt(const Plan& plan, F&& f) {
  std::vector<Plan> all;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const auto* call = std::get_if<kernels::KernelCall>(&plan.ops[i].call);
    if (plan.ops[i].kind != OpKind::momentum || call == nullptr ||
        !std::holds_alternative<Operation>(*call))
      continue;
    Plan broken = plan;
    if (f(std::get<Operation>(std::get<kernels::KernelCall>(broken.ops[i].call))))
      all.push_back(std::move(broken));
  }
  EXPECT_FALSE(all.empty());
  return all;
}

TEST(CompressedMomentum, IsRejectedWithOtherWeightsOrErrors) {
  const Case c = compressed(1, Compression::on);
  const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
  const auto expect_rejected = [](const std::vector<Plan>& plans, const char* why) {
    for (const Plan& broken : plans) EXPECT_THROW(check(broken), InternalError) << why;
  };
  using kernels::Blend, kernels::Quantize, kernels::Convert;
  expect_rejected(spoilt<Blend>(plan, [](Blend& b) { return b.add *= 2, true; }), "twice as much");
  expect_rejected(spoilt<Blend>(plan,
                                [](Blend& b) {  // another beta
                                  const bool joins = b.scalars && b.add > 0;
                                  b.keep = 0.5F, b.add = 0.5F / 4;
                                  return joins;
                                }),
                  "by another beta than leads back");
  expect_rejected(spoilt<Blend>(plan,
                                [&](Blend& b) {
                                  const bool keeps = static_cast<bool>(b.verdict);
                                  b.verdict = {};
                                  return keeps;
                                }),
                  "whether or not the step is applied");
  expect_rejected(spoilt<Blend>(plan,
                                [&](Blend& b) {
                                  const bool joins = static_cast<bool>(b.scalars);
                                  b.scalars = {};
                                  return joins;
                                }),
                  "without the loss scale");
  expect_rejected(spoilt<Quantize>(plan, [](Quantize& q) { return q.error = {}, true; }),
                  "without the errors of the step before");
  expect_rejected(spoilt<Convert>(plan, [](Convert& k) { return k.verdict = {}, true; }),
                  "errors of steps that are skipped");
}

// Of 1-bit LAMB: factors follow what all ranks have compared, of applied steps.
TEST(CompressedMomentum, IsRejectedWithOtherFactors) {
  using kernels::MomentRatio, kernels::FollowRatio;
  const Case c = compressed(1, Compression::begins, {}, Rule::lamb);
  const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
  const auto expect_rejected = [](const std::vector<Plan>& plans, const char* why) {
    for (const Plan& broken : plans) EXPECT_THROW(check(broken), InternalError) << why;
  };
  expect_rejected(spoilt<MomentRatio>(plan,
                                      [](MomentRatio& m) {
                                        const bool counts = static_cast<bool>(m.largest);
                                        m.largest = {};
                                        return counts;
                                      }),
                  "elements that are not compared");
  expect_rejected(
      spoilt<MomentRatio>(plan, [](MomentRatio& m) { return m.frozen = m.moment, true; }),
      "compared with themselves");
  expect_rejected(spoilt<FollowRatio>(plan, [](FollowRatio& f) { return f.verdict = {}, true; }),
                  "of steps that are skipped");
  // Factors of another tensor, exchanged, or of this rank's sums alone.
  const auto spoilt_updates = [&](auto&& spoil) {
    std::vector<Plan> all;
    for (std::size_t i = 0; i < plan.ops.size(); ++i) {
      if (plan.ops[i].kind != OpKind::update) continue;
      Plan broken = plan;
      auto& call = std::get<kernels::KernelCall>(broken.ops[i].call);
      if (spoil(std::get<kernels::OptimizerUpdate>(call))) all.push_back(std::move(broken));
    }
    EXPECT_FALSE(all.empty());
    return all;
  };
  expect_rejected(spoilt_updates([](kernels::OptimizerUpdate& u) {
                    u.factors[0].data += 4;
                    return true;
                  }),
                  "c of the next tensor");
  expect_rejected(spoilt_updates([](kernels::OptimizerUpdate& u) {
                    u.factors[1] = u.factors[0];
                    return true;
                  }),
                  "c twice");
  Plan sums = plan;
  for (Op& op : sums.ops) {
    auto* call = std::get_if<comm::CollectiveCall>(&op.call);
    auto* words = call == nullptr ? nullptr : std::get_if<comm::AllReduceWords>(call);
    if (words != nullptr) words->of = comm::AllReduceWords::Of::sum;
  }
  EXPECT_THROW(check(sums), InternalError);
  const Case warm = compressed(1, Compression::none, {}, Rule::lamb);
  const Plan before = make_plan(warm.inputs, warm.shape, {.data = 1});
  expect_rejected(without_each(before, OpKind::tensor_sums), "sums and means of ratios in warm-up");
}

// Before momentum is compressed its elements are summed as any gradient; then each rank sends, of a
// unit in blocks, its codes to their owners and those of its own part to all.
TEST(CompressedMomentum, SendsSignsAndScales) {
  for (const int stage : {0, 1, 2}) {
    const Case c = compressed(stage, Compression::on);
    const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
    const kernels::BlockFormat format{.type = BlockType::sign, .block = kBlock};
    for (std::size_t u = 0; u < plan.shares.size(); ++u) {
      const UnitShare& share = plan.shares[u];
      if (!share.momentum) continue;
      std::int64_t sent = 0, codes = 0;
      for (const Op& op : plan.ops) {
        if (op.unit != static_cast<std::int32_t>(u)) continue;
        const auto bytes = wire_bytes_of(plan, op);
        const bool counts = op.kind == OpKind::momentum || op.kind == OpKind::reduce_gradients;
        sent += counts ? bytes.intra + bytes.inter : 0;
      }
      for (const Range& chunk : chunks_of(share.shard, DType::f32, format, kSmallChunk))
        codes += format.bytes(chunk.count());
      EXPECT_EQ(sent, 3 * (codes + format.bytes(share.shard))) << u;
    }
  }
}

TEST(CompressedMomentum, IsWholeOnEachRank) {
  const Case c = compressed(1, Compression::on);
  const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
  std::int64_t found = 0;
  for (const Buffer& b : plan.buffers) {
    for (std::size_t u = 0; u < plan.shares.size(); ++u) {
      const std::string& name = c.inputs.model.units[u].name;
      const std::int64_t shard = plan.shares[u].shard;
      if (b.name == name + " onebit_m") {
        EXPECT_EQ(b.bytes, 4 * shard * (plan.shares[u].momentum ? 4 : 1)) << name;
        ++found;
      }
      const std::pair<const char*, std::int64_t> others[] = {
          {" onebit_v", 4}, {" error_of_mean", 2}, {" gradient_error_of_rank", 2 * 4}};
      for (const auto& [row, bytes] : others) {
        if (b.name == name + row) {
          EXPECT_EQ(b.bytes, bytes * shard) << b.name;
        }
      }
    }
  }
  EXPECT_EQ(found, std::ssize(plan.shares));
}

}  // namespace
}  // namespace tessera::plan
