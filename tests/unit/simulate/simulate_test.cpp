// The simulator: plans whose times can be worked out by hand, the bubbles that papers state, and
// what any real plan's simulation must obey.
#include "plan/prediction/simulate.hpp"

#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "plan/ir/print.hpp"
#include "plan/passes/make_plan.hpp"
#include "plan/passes/pipeline.hpp"
#include "plan/prediction/compare.hpp"
#include "plan/prediction/estimate.hpp"
#include "plan/prediction/items.hpp"
#include "plan/prediction/kernel_cost.hpp"
#include "support/blocks.hpp"

namespace tessera::plan {
namespace {

class NoScratch : public kernels::Device {
 public:
  std::int64_t scratch_bytes(const kernels::KernelCall&) const override { return 0; }
  void run(const kernels::KernelCall&) override { FAIL() << "a simulation ran a kernel"; }
};
const NoScratch device;

Op kernel(std::vector<OpId> waits = {}) {
  return {.call = kernels::KernelCall{kernels::Fill{}}, .waits = std::move(waits)};
}
Op background(Stream stream, const Call& call, std::vector<OpId> waits = {}) {
  return {.kind = OpKind::gather, .stream = stream, .call = call, .waits = std::move(waits)};
}
Op message(Stream stream, const comm::CollectiveCall& call, std::vector<OpId> waits = {}) {
  return {.kind = OpKind::send,
          .stream = stream,
          .group = MeshGroup::pipeline,
          .call = call,
          .waits = std::move(waits)};
}
Plan plan_of(std::vector<Op> ops, MeshPlace place = {}) {
  Plan plan;
  plan.ops = std::move(ops);
  plan.place = place;
  return plan;
}
Simulation run(const std::vector<Plan>& plans, const std::vector<std::vector<OpCost>>& costs) {
  return simulate(plans, costs);
}

TEST(Simulate, OverlapsStreamsAndChargesWaitsToTheStreamWaitedFor) {
  const Call gather = comm::CollectiveCall{comm::AllGather{}};
  const Plan plan = plan_of({background(Stream::gather, gather), kernel(), kernel({0}),
                             background(Stream::reduce, gather, {2}), kernel()});
  const Simulation s = run({plan}, {{{5}, {2}, {1}, {4}, {1}}});
  const std::vector<OpTime> expected{{0, 5}, {0, 2}, {5, 6}, {6, 10}, {6, 7}};
  EXPECT_EQ(s.ranks[0].ops, expected);
  EXPECT_DOUBLE_EQ(s.step, 10);
  EXPECT_DOUBLE_EQ(s.ranks[0].compute, 4);
  EXPECT_DOUBLE_EQ(s.ranks[0].exposed[static_cast<std::size_t>(Stream::gather)], 3);
  EXPECT_DOUBLE_EQ(s.ranks[0].exposed[static_cast<std::size_t>(Stream::reduce)], 3);
  EXPECT_DOUBLE_EQ(idle_share(s), 0.6);
}

TEST(Simulate, AStreamIsAQueueAndTheHostIssuesInOrder) {
  const Call gather = comm::CollectiveCall{comm::AllGather{}};
  // The second gather could begin at once, but the host comes to it after the first kernel.
  const Plan plan = plan_of({kernel(), background(Stream::gather, gather),
                             background(Stream::gather, gather), kernel({2})});
  const Simulation s = run({plan}, {{{2}, {3}, {1}, {1}}});
  const std::vector<OpTime> expected{{0, 2}, {2, 5}, {5, 6}, {6, 7}};
  EXPECT_EQ(s.ranks[0].ops, expected);
}

TEST(Simulate, TransfersShareTheirLinks) {
  const Call gather = comm::CollectiveCall{comm::AllGather{}};
  const Plan plan =
      plan_of({background(Stream::gather, gather), background(Stream::reduce, gather)});
  const OpCost near{.seconds = 2, .sent = {.intra = 1}},
      short_near{.seconds = 1, .sent = {.intra = 1}};
  // Both at half their rate until the shorter has had its 1 s after 2, then the other's last 1 s.
  EXPECT_DOUBLE_EQ(run({plan}, {{near, short_near}}).step, 3);
  const OpCost far{.seconds = 1, .sent = {.inter = 1}};
  EXPECT_DOUBLE_EQ(run({plan}, {{near, far}}).step, 2) << "other links";
}

TEST(Simulate, AMessageBeginsWhenBothSidesHaveComeToIt) {
  const Plan first = plan_of({kernel(), message(Stream::send_forward, comm::Send{.peer = 1}, {0})});
  const Plan second = plan_of(
      {message(Stream::receive_forward, comm::Receive{.peer = 0}), kernel({0})}, {.pipeline = 1});
  const Simulation s = run({first, second}, {{{3}, {2}}, {{0}, {1}}});
  EXPECT_EQ(s.ranks[1].ops[0], (OpTime{3, 5}));
  EXPECT_DOUBLE_EQ(s.ranks[1].end, 6);
  EXPECT_DOUBLE_EQ(s.ranks[0].end, 5);
}

TEST(Simulate, PlansThatWaitForEachOtherAreRefused) {
  const Plan first = plan_of({message(Stream::send_forward, comm::Send{.peer = 1})});
  const Plan second = plan_of({kernel()}, {.pipeline = 1});
  EXPECT_THROW(run({first, second}, {{{1}}, {{1}}}), InternalError);
}

// --- Bubbles
// ---------------------------------------------------------------------------------------

/// A pipeline of equal stages: forward 1 and backward 2 long, halves where it is split, by chunk.
double bubble(PipelineSchedule schedule, std::int64_t stages, std::int64_t k, std::int64_t chunks) {
  const PipelineRule rule{.schedule = schedule, .virtual_stages = chunks, .first_layers = {}};
  const auto actions = pipeline_actions(rule, stages, k, true);
  std::vector<Plan> plans;
  std::vector<std::vector<OpCost>> costs;
  using Kind = PipelineAction::Kind;
  for (std::int64_t s = 0; s < stages; ++s) {
    std::vector<Op> ops;
    std::vector<OpCost> cost;
    const auto add = [&](Op op, double seconds) {
      ops.push_back(std::move(op));
      cost.push_back({seconds});
      return static_cast<OpId>(ops.size()) - 1;
    };
    for (const PipelineAction& a : actions[static_cast<std::size_t>(s)]) {
      const bool forward = a.kind == Kind::forward, weight = a.kind == Kind::backward_weight;
      const std::int64_t part = a.virtual_stage * stages + s, step = forward ? 1 : -1;
      const bool starts = part == (forward ? 0 : stages * chunks - 1);
      const bool ends = part == (forward ? stages * chunks - 1 : 0);
      std::vector<OpId> waits;
      if (!weight && !starts) {
        waits.push_back(add(message(forward ? Stream::receive_forward : Stream::receive_backward,
                                    comm::Receive{.peer = (s - step + stages) % stages}),
                            0));
      }
      const double length = a.kind == Kind::backward ? 2 : 1;
      const OpId done = add(kernel(waits), length / static_cast<double>(chunks));
      if (!weight && !ends) {
        add(message(forward ? Stream::send_forward : Stream::send_backward,
                    comm::Send{.peer = (s + step + stages) % stages}, {done}),
            0);
      }
    }
    plans.push_back(plan_of(std::move(ops), {.pipeline = s}));
    costs.push_back(std::move(cost));
  }
  return idle_share(simulate(plans, costs));
}

TEST(Bubble, IsWhatThePapersSay) {
  for (const std::int64_t p : {2, 3, 4, 8}) {
    for (const std::int64_t k : {1, 2, 5, 8, 16}) {
      const double classic = static_cast<double>(p - 1) / static_cast<double>(k + p - 1);
      EXPECT_NEAR(bubble(PipelineSchedule::gpipe, p, k, 1), classic, 1e-12) << p << ' ' << k;
      EXPECT_NEAR(bubble(PipelineSchedule::one_f_one_b, p, k, 1), classic, 1e-12) << p << ' ' << k;
      const double zero = bubble(PipelineSchedule::zero_bubble, p, k, 1);
      EXPECT_LT(zero, classic) << p << ' ' << k;
      if (k != p) continue;
      // At best (p - 1) / v of a micro-batch's time (Narayanan et al. 2021, section 2.2).
      const double interleaved = bubble(PipelineSchedule::interleaved, p, k, 2);
      const double ideal = (p - 1) / 2.0 / (static_cast<double>(k) + (p - 1) / 2.0);
      EXPECT_LT(interleaved, classic) << p << ' ' << k;
      EXPECT_GT(interleaved, ideal - 1e-12) << p << ' ' << k;
    }
  }
}

// --- Real plans
// ------------------------------------------------------------------------------------

PlanInputs inputs(const Mesh& mesh, int stage) {
  PlanInputs in;
  model::ModelConfig& m = in.model.config;
  m.layers = 4, m.heads = m.kv_heads = 4, m.head_dim = 8, m.hidden = 32, m.ffn_hidden = 128,
  m.vocab = 128, m.context = 16;
  in.layout.mesh = mesh;
  in.layout.tensor_chunks = mesh.tensor;
  in.model.units = model::model_units(m, mesh.tensor);
  in.device = &device;
  in.sharding.stage = stage;
  return in;
}
const PlanShape shape{.sequence = 16, .micro = 2, .micro_batches = 4};

deck::Machine machine() {
  return deck::parse_machine(R"(ranks_per_node = 8
memory_rate = 1e9
[gemm]
n = [64]
f32 = [1e9]
[link.intra]
latency = 1e-6
rate = 1e9
[link.inter]
latency = 1e-5
rate = 1e8
)",
                             "test.toml");
}

TEST(OpCosts, AreRooflineAndWireTimes) {
  const deck::Machine m = machine();
  const Plan plan = make_plan(inputs({.data = 4}, 3), shape, {});
  const auto costs = op_costs(plan, m);
  int products = 0, gathers = 0, updates = 0;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    const double flop = flop_of(op);
    if (flop > 0) {
      EXPECT_GE(costs[i].seconds, flop / 1e9);
      ++products;
    }
    if (op.kind == OpKind::gather) {
      EXPECT_DOUBLE_EQ(costs[i].seconds,
                       3e-6 + static_cast<double>(wire_bytes_of(plan, op).intra) / 1e9);
      EXPECT_GT(costs[i].sent.intra, 0);
      EXPECT_EQ(costs[i].sent.inter, 0);
      ++gathers;
    }
    if (op.kind == OpKind::update) {  // reads gradient, master, m, v; writes the last three
      const auto& update =
          std::get<kernels::OptimizerUpdate>(std::get<kernels::KernelCall>(op.call));
      const std::int64_t bytes =
          28 * update.master.elements() + update.scalars.span_bytes() + update.verdict.span_bytes();
      EXPECT_NEAR(costs[i].seconds, 1e-9 * static_cast<double>(bytes), 1e-15);
      ++updates;
    }
  }
  EXPECT_GT(products, 0);
  EXPECT_GT(gathers, 0);
  EXPECT_GT(updates, 0);
}

TEST(OpCosts, ProductsOfExpertsTakeTheirFlop) {
  PlanInputs in = inputs({}, 0);
  in.model.config.bias = false;
  in.model.config.experts = {.count = 4, .hidden = 8, .routing = {.choices = 2}};
  in.model.units = model::model_units(in.model.config);
  const Plan plan = make_plan(in, shape, {});
  const auto costs = op_costs(plan, machine());
  int products = 0;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    if (!call_name(plan.ops[i].call).starts_with("expert_linear")) continue;
    EXPECT_GT(flop_of(plan.ops[i]), 0);
    EXPECT_GE(costs[i].seconds, flop_of(plan.ops[i]) / 1e9);
    ++products;
  }
  EXPECT_GE(products, 6);
}

TEST(OpCosts, KernelsHaveTheirOwnRates) {
  deck::Machine m = machine();
  const Plan plan = make_plan(inputs({}, 0), shape, {});
  const auto before = op_costs(plan, m);
  m.kernel[DType::f32]["exact_sum"] = m.memory_rate / 4;
  const auto after = op_costs(plan, m);
  int sums = 0;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const bool sum = call_name(plan.ops[i].call) == "exact_sum";
    sums += sum ? 1 : 0;
    EXPECT_DOUBLE_EQ(after[i].seconds, before[i].seconds * (sum ? 4 : 1));
  }
  EXPECT_GT(sums, 0);
  m.kernel[DType::f32]["exakt_sum"] = 1;
  EXPECT_THROW(op_costs(plan, m), DeckError);
}

// A step costs as much with gelu in its products as with operations of its own, but where the
// machine has it with the product.
TEST(OpCosts, GeluInProductsIsAnOperationOfItsOwnUnlessTheMachineSaysOtherwise) {
  deck::Machine m = machine();
  m.kernel_start = 1e-6;
  m.gemm[DType::bf16] = m.gemm[DType::f32];
  m.kernel[DType::f32] =
      m.kernel[DType::bf16] = {{"activation", 3e8}, {"activation_backward", 5e8}};
  const auto seconds = [&](bool layout_mode, DType compute = DType::bf16) {
    PlanInputs in = inputs({}, 0);
    in.numerics.compute = compute;
    in.numerics.layout_mode = layout_mode;  // keeps the two apart
    const Plan plan = make_plan(in, shape, {});
    const auto costs = op_costs(plan, m);
    std::array<double, 2> all{};  // matrix work, activations
    for (std::size_t i = 0; i < costs.size(); ++i) {
      const std::string_view name = call_name(plan.ops[i].call);
      if (name == kernels::LinearBackwardWeight::kName) continue;  // layout mode adds up otherwise
      if (flop_of(plan.ops[i]) > 0) all[0] += costs[i].seconds;
      if (name.starts_with("activation")) all[1] += costs[i].seconds;
    }
    return all;
  };
  const auto apart = seconds(true), together = seconds(false);
  EXPECT_GT(apart[1], 0);
  EXPECT_EQ(together[1], 0);
  EXPECT_NEAR(together[0], apart[0] + apart[1], 1e-9 * together[0]);
  const auto in_f32 = seconds(false, DType::f32);
  m.activations = deck::MachineActivations::in_products;
  EXPECT_EQ(seconds(false, DType::f32), in_f32);
  // A product writes or reads what gelu is of: 32 tokens of 128 columns, of 4 layers in 4
  // micro-batches, forward and backward.
  EXPECT_NEAR(seconds(false)[0], apart[0] + 2.0 * 16 * 32 * 128 * 2 / m.memory_rate,
              1e-9 * apart[0]);
}

// --- Kernels ------------------------------------------------------------------------------------

View tensor(DType type, std::int64_t rows, std::int64_t columns) {
  return View(symbolic(0), type, {rows, columns});
}

/// Products at 1e12 flop/s, memory at 1e9 bytes/s, a launch takes 1 s.
deck::Machine slow_memory() {
  deck::Machine m = machine();
  m.gemm[DType::f32] = m.gemm[DType::bf16] = {1e12};
  m.kernel_start = 1;
  return m;
}

kernels::LinearBackwardWeight weight_gradient(DType result, kernels::Write write) {
  return {.d_y = tensor(DType::bf16, 1024, 2048),
          .x = tensor(DType::bf16, 1024, 512),
          .d_weight = tensor(result, 2048, 512),
          .write = write};
}

TEST(KernelCost, ProductsPayForWhatTheyWriteBeyondAResultOfTheirType) {
  const deck::Machine m = slow_memory();
  const auto seconds = [&](DType result, kernels::Write write) {
    return kernel_cost(weight_gradient(result, write), m).seconds;
  };
  constexpr double kElements = 2048.0 * 512;
  const double plain = seconds(DType::bf16, kernels::Write::overwrite);
  const double bytes = 2 * (1024 * (2048 + 512) + kElements);  // take longer than the flop
  EXPECT_NEAR(plain, 1 + bytes / 1e9, 1e-12);
  deck::Machine fast = m;
  fast.memory_rate = 1e11;
  const auto fast_seconds = [&](DType result, kernels::Write write) {
    return kernel_cost(weight_gradient(result, write), fast).seconds;
  };
  const double flop = 2.0 * 1024 * kElements / 1e12;
  EXPECT_NEAR(fast_seconds(DType::bf16, kernels::Write::overwrite), 1 + flop, 1e-12);
  EXPECT_NEAR(fast_seconds(DType::f32, kernels::Write::overwrite), 1 + flop + 2 * kElements / 1e11,
              1e-12);
  EXPECT_NEAR(fast_seconds(DType::f32, kernels::Write::add), 1 + flop + 6 * kElements / 1e11,
              1e-12);
}

TEST(KernelCost, ABiasGradientIsASumOfItsOwn) {
  const deck::Machine m = slow_memory();
  kernels::LinearBackwardWeight call = weight_gradient(DType::f32, kernels::Write::overwrite);
  deck::Machine fast = m;
  fast.memory_rate = 1e11;
  const double without = kernel_cost(call, fast).seconds;
  call.d_bias = View(symbolic(0), DType::f32, {std::int64_t{2048}});
  EXPECT_NEAR(kernel_cost(call, fast).seconds, without + 1 + 2.0 * 1024 * 2048 / 1e11, 1e-12);
}

// Rates of fp8 products have a cube's conversions in them: others pay for what they have more.
TEST(KernelCost, Fp8OperandsAreConvertedAsManyAsThereAre) {
  deck::Machine m = slow_memory();
  m.gemm[DType::e4m3] = {1e12};
  m.memory_rate = 1e11;
  const auto seconds = [&](std::int64_t rows, std::int64_t n, std::int64_t k) {
    return kernel_cost(kernels::Linear{.x = tensor(DType::bf16, rows, k),
                                       .weight = tensor(DType::bf16, n, k),
                                       .y = tensor(DType::bf16, rows, n),
                                       .operands = kernels::Operands::fp8},
                       m)
        .seconds;
  };
  const double cube = 2e-12 * 1024 * 1024 * 1024;
  EXPECT_NEAR(seconds(1024, 1024, 1024), 1 + cube, 1e-9);
  // Each element is read twice in 16 bits and written in 8.
  const double more = 5.0 * (4096.0 * 1024 + 256 * 1024 - 2.0 * 1024 * 1024) / 1e11;
  EXPECT_NEAR(seconds(4096, 256, 1024), 1 + cube + more, 1e-9);
  m.fp8_conversion = 2e10;
  EXPECT_NEAR(seconds(4096, 256, 1024), 1 + cube + 5 * more, 1e-9);
}

TEST(KernelCost, AttentionHasRatesOfItsDirectionAndWidth) {
  deck::Machine m = slow_memory();
  m.memory_rate = 1e15;
  m.attention_heads = {32, 128};
  m.attention[DType::bf16] = {1e6, 3e6};
  m.attention_backward[DType::bf16] = {5e5, 7e5};
  const auto cost = [&](std::int64_t width, bool backward) {
    const View x(symbolic(0), DType::bf16, {2, 16, 4 * width});
    const kernels::AttentionShape heads{
        .heads = 4, .kv_heads = 4, .head_dim = width, .scale = 0.1F};
    if (!backward)
      return kernel_cost(kernels::Attention{.q = x, .k = x, .v = x, .out = x, .shape = heads}, m);
    return kernel_cost(kernels::AttentionBackward{.q = x,
                                                  .k = x,
                                                  .v = x,
                                                  .out = x,
                                                  .d_out = x,
                                                  .d_q = x,
                                                  .d_k = x,
                                                  .d_v = x,
                                                  .shape = heads},
                       m);
  };
  for (const auto& [width, forward, backward] :
       {std::tuple{32, 1e6, 5e5}, std::tuple{64, 2e6, 6e5}, std::tuple{256, 3e6, 7e5}}) {
    EXPECT_NEAR(cost(width, false).seconds, 1 + cost(width, false).flop / forward, 1e-9) << width;
    EXPECT_NEAR(cost(width, true).seconds, 1 + cost(width, true).flop / backward, 1e-9) << width;
  }
  m.attention_backward.clear();
  EXPECT_NEAR(cost(128, true).seconds, 1 + cost(128, true).flop / 3e6, 1e-9) << "as forward";
  EXPECT_DOUBLE_EQ(cost(128, true).at_best, cost(128, true).flop / 1e12);
}

// Blocks' products go by the rate of fp8 products, the head's by that of their type.
TEST(OpCosts, Fp8ProductsHaveTheirOwnRates) {
  deck::Machine m = machine();
  PlanInputs in = inputs({}, 0);
  in.numerics.operands = kernels::Operands::fp8;
  const Plan plan = make_plan(in, shape, {});
  EXPECT_THROW(op_costs(plan, m), DeckError);
  m.memory_rate = 1e15;
  m.gemm[DType::e4m3] = {4e9};
  const auto costs = op_costs(plan, m);
  int blocks = 0, heads = 0;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    if (!std::string_view(call_name(op.call)).starts_with("linear")) continue;
    const bool block =
        in.model.units[static_cast<std::size_t>(op.unit)].kind == model::UnitKind::block;
    ++(block ? blocks : heads);
    EXPECT_NEAR(costs[i].seconds, flop_of(op) / (block ? 4e9 : 1e9), 1e-9) << call_name(op.call);
  }
  EXPECT_EQ(blocks, 4 * 4 * (4 + 8)) << "layers x micro-batches x products";
  EXPECT_EQ(heads, 4 * 3);
}

TEST(OpCosts, RingsShareTheNodesLinks) {
  deck::Machine m = machine();
  m.collectives = deck::Collectives::ring;
  PlanInputs in = inputs({.data = 8}, 3);
  in.layout.node_of = {0, 0, 0, 0, 1, 1, 1, 1};
  in.layout.nccl = true;
  const Plan plan = make_plan(in, shape, {});
  const auto costs = op_costs(plan, m);
  int gathers = 0;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    if (plan.ops[i].kind != OpKind::gather) continue;
    ++gathers;
    const auto bytes = wire_bytes_of(plan, plan.ops[i]);
    const std::int64_t all = bytes.intra + bytes.inter;  // 7 shards
    EXPECT_EQ(bytes.inter, all / 4);
    EXPECT_EQ(costs[i].sent.inter, ceil_div(all, std::int64_t{4}))
        << "all shards once a node, by four links";
    EXPECT_EQ(costs[i].sent.intra + costs[i].sent.inter, all);
    EXPECT_DOUBLE_EQ(costs[i].seconds,
                     std::max(6e-6 + static_cast<double>(costs[i].sent.intra) / 1e9,
                              1e-5 + static_cast<double>(costs[i].sent.inter) / 1e8));
  }
  EXPECT_GT(gathers, 0);
}

TEST(OpCosts, SlotsGoPairwiseAlsoBesideRings) {
  deck::Machine m = machine();
  m.collectives = deck::Collectives::ring;
  PlanInputs in = inputs({.data = 8}, 2);
  in.layout.node_of = {0, 0, 0, 0, 1, 1, 1, 1};
  test::travel_in_blocks(in, {}, kernels::BlockFormat{.type = kernels::BlockType::int4});
  const Plan plan = make_plan(in, shape, {});
  const auto costs = op_costs(plan, m);
  int hops[2] = {};
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    if (call_name(plan.ops[i].call) != comm::AllToAll::kName) continue;
    const auto bytes = wire_bytes_of(plan, plan.ops[i]);
    const bool across = bytes.inter > 0;
    ++hops[across ? 1 : 0];
    EXPECT_EQ(across ? bytes.intra : bytes.inter, 0);
    EXPECT_DOUBLE_EQ(costs[i].seconds, across ? 1e-5 + static_cast<double>(bytes.inter) / 1e8
                                              : 3e-6 + static_cast<double>(bytes.intra) / 1e9);
  }
  EXPECT_GT(hops[0], 0);
  EXPECT_EQ(hops[0], hops[1]);
}

TEST(OpCosts, WhatIsElsewhereComesOverItsLink) {
  deck::Machine m = machine();
  m.host = deck::Link{.latency = 1e-3, .rate = 1e6};
  m.disk_read = 4e5, m.disk_write = 2e5;
  PlanInputs in = inputs({.data = 2}, 1);
  in.offload = {.gradients = Location::host, .optimizer = Location::disk};
  const Plan plan = make_plan(in, shape, {});
  const auto costs = op_costs(plan, m);
  std::map<Stream, int> seen;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const auto* copy = std::get_if<Copy>(&plan.ops[i].call);
    if (copy == nullptr) continue;
    const auto bytes = static_cast<double>(copy->from.span_bytes());
    const Stream stream = plan.ops[i].stream;
    ++seen[stream];
    EXPECT_DOUBLE_EQ(costs[i].seconds,  // two ranks share the disks of their node
                     stream == Stream::disk_read    ? bytes / 2e5
                     : stream == Stream::disk_write ? bytes / 1e5
                                                    : 1e-3 + bytes / 1e6);
  }
  for (const Stream stream : {Stream::read, Stream::write, Stream::disk_read, Stream::disk_write})
    EXPECT_GT(seen[stream], 0) << enum_word(stream);
  m.disk_read = m.disk_write = 0;
  EXPECT_THROW(op_costs(plan, m), DeckError);
}

TEST(OpCosts, AMissingLinkIsAnError) {
  deck::Machine m = machine();
  m.inter.reset();
  PlanInputs in = inputs({.data = 2}, 0);
  in.layout.node_of = {0, 1};
  const Plan plan = make_plan(in, shape, {});
  EXPECT_THROW(op_costs(plan, m), DeckError);
}

TEST(Predict, ObeysPlansOfEveryKind) {
  for (const Mesh& mesh : {Mesh{}, Mesh{.data = 3}, Mesh{.tensor = 2}, Mesh{.tensor = 3},
                           Mesh{.pipeline = 2}, Mesh{.tensor = 2, .data = 2, .pipeline = 2}}) {
    for (const int stage : {0, 1, 3}) {
      for (const auto& [schedule, chunks] :
           {std::pair{PipelineSchedule::one_f_one_b, 1}, std::pair{PipelineSchedule::gpipe, 1},
            std::pair{PipelineSchedule::interleaved, 2},
            std::pair{PipelineSchedule::zero_bubble, 1}}) {
        PlanInputs in = inputs(mesh, stage);
        in.layout.pipeline.schedule = schedule;
        in.layout.pipeline.virtual_stages = mesh.pipeline > 1 ? chunks : 1;
        if (mesh.tensor == 3) in.layout.split_sequence = false;
        SCOPED_TRACE(fmt::format("{} x {} x {}, stage {}, {}", mesh.tensor, mesh.data,
                                 mesh.pipeline, stage, enum_word(schedule)));
        Prediction p;
        ASSERT_NO_THROW(p = predict(simulated_plans(in, shape), in, machine()));
        const std::size_t tensor = mesh.tensor == 3 ? 3 : 1;  // 4 heads over 3 ranks
        ASSERT_EQ(p.plans.size(), tensor * static_cast<std::size_t>(mesh.pipeline));
        for (std::size_t r = 0; r < p.plans.size(); ++r) {
          const auto& ops = p.plans[r].ops;
          const auto& times = p.simulation.ranks[r].ops;
          double stream_free[kStreams] = {};
          for (std::size_t i = 0; i < ops.size(); ++i) {
            auto& free = stream_free[static_cast<std::size_t>(ops[i].stream)];
            ASSERT_GE(times[i].begin, free - 1e-12) << "a stream is a queue";
            free = times[i].end;
            for (const OpId w : ops[i].waits)
              ASSERT_GE(times[i].begin, times[static_cast<std::size_t>(w)].end) << "waits hold";
          }
          const SimulatedRank& rank = p.simulation.ranks[r];
          double spent = rank.compute;
          for (const double e : rank.exposed) spent += e;
          EXPECT_NEAR(spent, rank.end, 1e-9) << "the host computes or waits";
          EXPECT_LE(rank.end, p.simulation.step);
        }
        const TimedStep step = timed(p);
        for (std::size_t r = 0; r < step.size(); ++r) {
          const Waits waits = exposed_waits(step[r]);
          for (std::size_t i = 0; i < kStreams; ++i)
            EXPECT_NEAR(waits.seconds[i], p.simulation.ranks[r].exposed[i], 1e-9);
        }
        const Prediction again = predict(simulated_plans(in, shape), in, machine());
        EXPECT_EQ(again.simulation.step, p.simulation.step);
        EXPECT_LE(p.bubble, idle_share(p.simulation) + 1e-12);
      }
    }
  }
}

/// No step is shorter than the kernels of the rank that has most of them, and plans of one
/// micro-batch tell these, but for the gradients that later ones read to add to them. Of two rounds
/// at the most the estimate is the step itself.
TEST(Estimate, KernelsOfOneMicroBatchBoundEveryStep) {
  for (const Mesh& mesh : {Mesh{}, Mesh{.data = 3}, Mesh{.data = 2, .pipeline = 2},
                           Mesh{.tensor = 2, .data = 2, .pipeline = 2}}) {
    for (const int stage : {0, 2, 3}) {
      for (const std::int64_t all : {2, 4, 9}) {
        PlanInputs in = inputs(mesh, stage);
        PlanShape some = shape;
        some.micro_batches = all;
        SCOPED_TRACE(fmt::format("{} x {} x {}, stage {}, {} micro-batches", mesh.tensor, mesh.data,
                                 mesh.pipeline, stage, all));
        const FewMicroBatches one(in, some, 1, machine()), two(in, some, 2, machine());
        FewMicroBatches whole(in, some, all, machine());
        const auto least = one.computing(all), true_ones = whole.computing(all);
        EXPECT_LE(least.most, true_ones.most * (1 + 1e-12));
        EXPECT_GE(least.most, true_ones.most * 0.9);
        EXPECT_LE(least.mean, true_ones.mean * (1 + 1e-12));
        // But for where buffers happen to lie, of which scratch and the staging of reductions have
        // 1 MiB here: the last stage finds room for two of them in some plans, for three in others.
        EXPECT_LE(one.device_bytes(), two.device_bytes() + (1 << 20));
        const double step = std::move(whole).play().step,
                     estimate = estimate_step(in, some, machine());
        EXPECT_LE(least.most, step * (1 + 1e-12));
        if (all <= 2 * mesh.pipeline)
          EXPECT_EQ(estimate, step);
        else
          EXPECT_NEAR(estimate, step, 0.1 * step);
      }
    }
  }
}

/// By hand, with 2 ms between operations: the rows of the compute stream add up.
TEST(Compare, PutsAllOfAStepUnderSomething) {
  const Call gather = comm::CollectiveCall{comm::AllGather{}};
  const Plan plan = plan_of({background(Stream::gather, gather), kernel(), kernel({0}),
                             background(Stream::reduce, gather, {2})});
  const std::vector<OpTime> ops{{0.001, 0.006}, {0.001, 0.003}, {0.007, 0.008}, {0.008, 0.012}};
  const TimedStep measured{{.plan = plan, .ops = ops, .begin = 0, .end = 0.0125}};
  std::map<std::pair<TimeGroup, std::string>, double> ms;
  for (const TimeRow& row : compare(nullptr, &measured)) {
    EXPECT_FALSE(row.predicted);
    ms[{row.group, row.name}] = *row.measured * 1e3;
  }
  using G = TimeGroup;
  const auto expect = [&](G group, const char* name, double value) {
    ASSERT_TRUE(ms.contains({group, name})) << name;
    EXPECT_NEAR(ms.at({group, name}), value, 1e-9) << name;
    ms.erase({group, name});
  };
  expect(G::compute, "forward", 3);
  expect(G::compute, "waits for gather", 3);
  expect(G::compute, "waits for reduce", 4);
  expect(G::compute, "between operations", 2.5);
  expect(G::compute, "in all", 12.5);
  expect(G::background, "parameters", 9);
  expect(G::operations, "fill", 3);
  expect(G::operations, "gather all_gather", 9);
  EXPECT_TRUE(ms.empty());
}

TEST(Compare, AMissingWaitIsNone) {
  const Call gather = comm::CollectiveCall{comm::AllGather{}};
  const Plan plan = plan_of({background(Stream::gather, gather), kernel({0})});
  const TimedStep predicted{{.plan = plan, .ops = {{0, 1}, {1, 2}}, .begin = 0, .end = 2}};
  TimedStep measured = predicted;
  measured[0].ops = {{0, 0}, {0, 4}}, measured[0].end = 4;
  for (const TimeRow& row : compare(&predicted, &measured)) {
    if (row.name != "waits for gather") continue;
    EXPECT_DOUBLE_EQ(*row.predicted, 1);
    EXPECT_DOUBLE_EQ(*row.measured, 0);
    EXPECT_NE(to_text({row}).find("0.00"), std::string::npos);
    return;
  }
  FAIL() << "no row of the wait";
}

TEST(Items, AreAllOfAStep) {
  PlanInputs in = inputs({.data = 2, .pipeline = 2}, 3);
  in.numerics.compute = DType::bf16;
  deck::Machine m = machine();
  m.gemm[DType::bf16] = {2e9};
  const Prediction p = predict(simulated_plans(in, shape), in, m);
  const std::vector<Item> items = items_of(p, m);
  Item all;
  double ops = 0, flop = 0, compute = 0;
  for (std::size_t r = 0; r < p.plans.size(); ++r) {
    flop += total_flop(p.plans[r]) / 2, compute += p.simulation.ranks[r].compute / 2;
    for (const Op& op : p.plans[r].ops) ops += std::holds_alternative<LoadBatch>(op.call) ? 0 : 0.5;
  }
  std::map<std::string, const Item*> by_name;
  for (const Item& i : items) {
    all.calls += i.calls, all.flop += i.flop;
    if (!i.beside) all.seconds += i.seconds;
    by_name[i.name + ", " + i.shape] = &i;
  }
  EXPECT_NEAR(all.calls, ops, 1e-9);
  EXPECT_NEAR(all.flop, flop, 1e-6 * flop);
  EXPECT_NEAR(all.seconds, compute, 1e-9 * compute);

  // Of half a model's 4 layers on each stage, 4 micro-batches of 2 x 16 tokens.
  const Item& up = *by_name.at("linear, bf16 32 x 128 x 32 gelu");
  EXPECT_DOUBLE_EQ(up.calls, 8);
  EXPECT_DOUBLE_EQ(up.flop, 8 * 2.0 * 32 * 128 * 32);
  EXPECT_LT(*up.reached(), 1);
  EXPECT_DOUBLE_EQ(by_name.at("attention, bf16 2 x 16, 4 of 8")->calls, 8);
  const Item& gathers = *by_name.at("gather, all_gather");
  EXPECT_TRUE(gathers.beside);
  EXPECT_FALSE(gathers.reached());
  EXPECT_FALSE(items.front().beside);
  EXPECT_TRUE(items.back().beside);

  const std::string text = to_text(items, p.simulation.step);
  EXPECT_NE(text.find("linear_wgrad        bf16 128 x 32 x 32 "), std::string::npos) << text;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
}

TEST(Predict, ABusierNetworkTakesLonger) {
  PlanInputs near = inputs({.data = 4}, 2), far = near;
  far.layout.node_of = {0, 0, 1, 1};
  EXPECT_GT(predict(simulated_plans(far, shape), far, machine()).simulation.step,
            predict(simulated_plans(near, shape), near, machine()).simulation.step);
}

}  // namespace
}  // namespace tessera::plan
