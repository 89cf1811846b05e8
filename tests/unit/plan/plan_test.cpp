// Plans over many layouts: every one is proved by the checker, all ranks agree, and traffic equals
// the formulas.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "plan/ir/lives.hpp"
#include "plan/passes/buffers.hpp"
#include "plan/passes/layers.hpp"
#include "plan/passes/make_plan.hpp"
#include "plan/proof/check.hpp"
#include "plan/proof/meetings.hpp"
#include "support/sanitized.hpp"
#include "unit/plan/cases.hpp"

namespace tessera::plan {
namespace {

TEST(MakePlan, EvaluationHoldsNeitherOptimizerStateNorGradients) {
  for (int stage = 0; stage < 4; ++stage) {
    Case c = make_case(stage, 2, 2, ReduceWhen::step);
    c.inputs.numerics.compute = DType::bf16;
    c.inputs.state_for = c.shape.purpose = PlanPurpose::evaluate;
    for (const Buffer& b : make_plan(c.inputs, c.shape, {}).buffers) {
      EXPECT_NE(b.purpose, BufferPurpose::gradients) << b.name;
      EXPECT_TRUE(!b.persistent || b.purpose == BufferPurpose::parameters ||
                  b.purpose == BufferPurpose::control)
          << b.name;
    }
    c.shape.purpose = PlanPurpose::train;
    EXPECT_THROW(make_plan(c.inputs, c.shape, {}), InternalError) << "there is no state to update";
  }
}

// What is kept of a unit follows from the optimizer's rows alone: how many elements, of which type,
// and what snapshots have; the update is given all of them.
TEST(MakePlan, KeepsWhatTheOptimizerSays) {
  using optim::Extent;
  for (int stage = 0; stage <= 3; ++stage) {
    Case c = make_case(stage, 2, 2, ReduceWhen::step);
    c.inputs.state_for = c.shape.purpose = PlanPurpose::train_snapshot;
    optim::Optimizer& optimizer = c.inputs.optimizer;
    optimizer.state = {{.name = "moment"},
                       {.name = "shard", .type = DType::bf16, .extent = Extent::shard},
                       {.name = "ratio", .extent = Extent::tensor, .saved = false},
                       {.name = "error", .extent = Extent::rank, .saved = false}};
    std::vector<std::vector<View>> states;
    optimizer.update = [&](const optim::UpdateViews& views, const optim::UpdateTerms&) {
      states.emplace_back(views.state.begin(), views.state.end());
      return kernels::OptimizerUpdate{.gradient = views.gradient,
                                      .master = views.master,
                                      .scalars = views.scalars,
                                      .verdict = views.verdict};
    };
    const Plan plan = make_plan(c.inputs, c.shape, {});
    std::map<std::string, const Buffer*> named;
    for (const Buffer& b : plan.buffers) named[b.name] = &b;
    for (std::size_t u = 0; u < c.inputs.model.units.size(); ++u) {
      const auto& unit = c.inputs.model.units[u];
      const std::int64_t shard = plan.shares[u].shard, owned = stage == 0 ? 2 * shard : shard;
      const auto bytes = [&](const char* what) {
        return named.at(fmt::format("{} {}", unit.name, what))->bytes;
      };
      EXPECT_EQ(bytes("moment"), 4 * owned);
      EXPECT_EQ(bytes("shard"), 2 * shard);
      EXPECT_EQ(bytes("ratio"), 4 * std::ssize(unit.params));
      EXPECT_EQ(bytes("error"), 4 * 2 * shard);
      EXPECT_EQ(bytes("snapshot of master"), 4 * shard);
      EXPECT_EQ(bytes("snapshot of moment"), 4 * shard);
      EXPECT_EQ(bytes("snapshot of shard"), 2 * shard);
      EXPECT_EQ(named.count(unit.name + " snapshot of ratio"), 0u);
      EXPECT_EQ(named.count(unit.name + " snapshot of error"), 0u);
    }
    ASSERT_FALSE(states.empty());
    for (const auto& views : states) {
      ASSERT_EQ(views.size(), 4u);
      for (const View& v : views) EXPECT_TRUE(v);
    }
    optimizer.state.back().saved = true;
    EXPECT_THROW(make_plan(c.inputs, c.shape, {}), InternalError);
  }
}

// Where something else computes gelu again, it is an operation of its own.
TEST(MakePlan, PutsGeluInProductsUnlessItIsReplayed) {
  const auto count = [](const Plan& plan, auto&& is) {
    return std::ranges::count_if(plan.ops, [&](const Op& op) {
      const auto* kernel = std::get_if<kernels::KernelCall>(&op.call);
      return kernel != nullptr && std::visit(is, *kernel);
    });
  };
  const auto brings_gelu = [](const auto& args) {
    if constexpr (requires { args.preactivation; }) return static_cast<bool>(args.preactivation);
    return false;
  };
  const auto is_activation = [](const auto& args) {
    using Args = std::decay_t<decltype(args)>;
    return std::is_same_v<Args, kernels::Activate> ||
           std::is_same_v<Args, kernels::ActivateBackward>;
  };
  for (const bool layout_mode : {false, true}) {
    for (const auto policy : {Recompute::none, Recompute::selective, Recompute::full}) {
      Case c = make_case(0, 1, 1, ReduceWhen::step);
      c.inputs.recompute = policy, c.inputs.numerics.layout_mode = layout_mode;
      const Plan plan = make_plan(c.inputs, c.shape, {});
      const std::int64_t forwards = policy == Recompute::none ? 1 : 2;
      const std::int64_t all = c.inputs.model.config.layers * (forwards + 1);
      const bool apart = layout_mode || policy == Recompute::selective;
      EXPECT_EQ(count(plan, brings_gelu), apart ? 0 : all) << enum_word(policy);
      EXPECT_EQ(count(plan, is_activation), apart ? all : 0) << enum_word(policy);
    }
  }
}

// All products of the blocks and no others.
TEST(MakePlan, HasFp8OperandsInBlocksOnly) {
  for (const auto policy : {Recompute::none, Recompute::selective, Recompute::full}) {
    Case c = make_case(0, 1, 1, ReduceWhen::step);
    c.inputs.recompute = policy, c.inputs.numerics.operands = kernels::Operands::fp8;
    int others = 0;
    for (const Op& op : make_plan(c.inputs, c.shape, {}).ops) {
      const auto* kernel = std::get_if<kernels::KernelCall>(&op.call);
      if (kernel == nullptr) continue;
      std::visit(
          [&](const auto& args) {
            if constexpr (requires { args.operands; }) {
              const auto kind = c.inputs.model.units[static_cast<std::size_t>(op.unit)].kind;
              const bool block = kind == model::UnitKind::block;
              EXPECT_EQ(args.operands == kernels::Operands::fp8, block) << args.kName;
              others += block ? 0 : 1;
            }
          },
          *kernel);
    }
    EXPECT_EQ(others, 3) << "the head's";
  }
}

// What is gathered of a layer at once is a tile, beside the one that is used: the largest window of
// a block is a fourth of the matrices of its feed-forward.
TEST(MakePlan, GathersTilesOneAfterAnother) {
  const auto windows = [](std::int64_t tiles) {
    Case c = make_case(3, 2, 2, ReduceWhen::micro);
    model::ModelConfig& m = c.inputs.model.config;
    m.heads = m.kv_heads = 4, m.head_dim = 16, m.hidden = 64, m.ffn_hidden = 256;
    c.inputs.layout.tensor_chunks = tiles;
    c.inputs.model.units = model::model_units(m, tiles, {.tiles = tiles});
    const Plan plan = make_plan(c.inputs, c.shape, {});
    check(plan);
    const auto lives = buffer_lives(plan);
    std::int64_t most = 0, largest = 0;
    for (std::int64_t i = 0; i < std::ssize(plan.ops); ++i) {
      std::int64_t now = 0;
      for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
        if (plan.buffers[b].purpose != BufferPurpose::gather_window) continue;
        largest = std::max(largest, plan.buffers[b].bytes);
        if (lives[b].begin <= i && i <= lives[b].end) now += plan.buffers[b].bytes;
      }
      most = std::max(most, now);
    }
    return std::pair{most, largest};
  };
  const auto [whole, block] = windows(1);
  const auto [tiled, tile] = windows(4);
  EXPECT_GT(block, 4 * 12 * 64 * 64);
  EXPECT_GE(tile, 4 * 2 * 64 * 64);
  EXPECT_LT(tile, 4 * 2 * 64 * 64 + 4 * 2 * 256);
  EXPECT_LT(tiled, whole / 3);
}

// Before its order of micro-batches takes all memory there is.
TEST(MakePlan, RefusesStepsThatAreTooLong) {
  for (const std::int64_t stages : {1, 3}) {
    Case c = make_case(0, 1, std::int64_t{1} << 32, ReduceWhen::step);
    c.inputs.layout.mesh.pipeline = stages;
    EXPECT_THROW(make_plan(c.inputs, c.shape, {}), DeckError) << stages;
  }
}

TEST(MakePlan, IsProvedOnRandomLayouts) {
  std::mt19937 random(1);
  int left = 0;  // for a plan that completes what the last step has left
  int divided = 0, cut = 0, latents = 0;
  const int tries = test::kSanitized ? 150 : 400;
  for (int i = 0; i < tries; ++i) {
    Case c = random_case(random);
    divide_experts(c, random);
    divide_sequences(c, random);
    latents += c.inputs.model.config.latent ? 1 : 0;
    divided += c.inputs.layout.mesh.experts > 1 ? 1 : 0;
    cut += c.inputs.layout.mesh.context > 1 ? 1 : 0;
    expect_proved(c);
    if (!leaves_work(c.inputs) || c.inputs.state_for < PlanPurpose::flush) continue;
    c.shape = flush_after(c.shape.compression);
    expect_proved(c);
    ++left;
  }
  EXPECT_GT(left, tries / 20);
  EXPECT_GT(divided, tries / 80);
  EXPECT_GT(cut, tries / 20);
  EXPECT_GT(latents, tries / 20);
}

/// Elements of another type, or, where all of them are matrices, codes.
model::Storage random_storage(std::mt19937& random, const Case& c, model::UnitDesc& unit) {
  const bool matrices = std::ranges::all_of(unit.params,
                                            [](const model::ParamDesc&p) { return p.is_matrix(); }),
             on_disk = c.inputs.offload.parameters == Location::disk;
  if (!matrices || unit.params.empty() || on_disk || random() % 2 == 0)
    return {.type = DType::f32, .codes = std::nullopt};
  if (unit.traits.block == 0) unit.traits.block = 32;
  const auto type = random() % 2 == 0 ? kernels::BlockType::int8 : kernels::BlockType::int4;
  return {.type = DType::u8,
          .codes = kernels::BlockFormat{.type = type, .block = unit.traits.block}};
}

TEST(MakePlan, IsProvedWithAnyUnitsFrozen) {
  std::mt19937 random(2);
  int coded = 0;
  for (int i = 0; i < 200; ++i) {
    Case c = random_case(random);
    for (model::UnitDesc& unit : c.inputs.model.units) {
      if (random() % 2 == 0) continue;
      unit.traits.trained = false;
      if (random() % 2 == 0) unit.traits.stored = random_storage(random, c, unit);
      coded += unit.traits.stored && unit.traits.stored->codes ? 1 : 0;
    }
    expect_proved(c);
  }
  EXPECT_GT(coded, 50);
}

/// With 12 data ranks, the first 8 on a node.
Case divided_case(int stage) {
  Case c = make_case(stage, 12, 2, ReduceWhen::step);
  PlanInputs& in = c.inputs;
  give_experts(in, {.count = 6, .hidden = 8, .routing = {.choices = 2}}, 3,
               {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1});
  c.shape.purpose = in.state_for = PlanPurpose::train_snapshot;
  return c;
}

// Of three ranks that divide experts two have replicas that lie on nodes in another way.
TEST(MakePlan, IsOneForAllThatDivideExpertsHoweverTheyLie) {
  for (int stage = 0; stage < 4; ++stage) expect_proved(divided_case(stage));
}

TEST(MakePlan, SumsErrorsOfDividedExpertsOverTheirReplicas) {
  Case c = divided_case(2);
  test::travel_in_blocks(c.inputs, {}, {{.type = kernels::BlockType::int4, .block = 32}}, 1);
  c.inputs.model.units =
      model::model_units(c.inputs.model.config, 1, {.block = 32, .expert_ranks = true});
  c.inputs.numerics.error_feedback = true;
  expect_proved(c);
}

// In layout mode gradients of each rank's tokens are apart until they are added.
TEST(MakePlan, KeepsSumsOfDividedExpertsWhereStateIs) {
  for (const Location where : {Location::host, Location::disk}) {
    for (const std::int64_t data : {2, 4}) {
      Case c = make_case(1, data, 2, ReduceWhen::step);
      c.inputs.model.config.bias = false;
      c.inputs.model.config.experts = {.count = 4, .hidden = 8, .routing = {.choices = 2}};
      c.inputs.layout.mesh.experts = 2;
      c.inputs.model.units = model::model_units(c.inputs.model.config, 1, {.expert_ranks = true});
      c.inputs.numerics.layout_mode = true;
      c.inputs.offload = {.gradients = where, .optimizer = where, .ahead = 1};
      expect_proved(c);
    }
  }
}

/// Names of what a plan's ops on a unit are, and of its buffers.
std::set<std::string> about(const Plan& plan, std::size_t unit, const std::string& name) {
  std::set<std::string> all;
  for (const Op& op : plan.ops) {
    if (op.unit == static_cast<std::int32_t>(unit) && op.kind != OpKind::kernel)
      all.emplace(enum_word(op.kind));
    if (op.unit == static_cast<std::int32_t>(unit) && op.kind == OpKind::kernel &&
        call_name(op.call) == "linear_wgrad")
      all.insert("linear_wgrad");
  }
  for (const Buffer& b : plan.buffers) {
    if (b.name.starts_with(name + " ")) all.insert(b.name.substr(name.size() + 1));
  }
  return all;
}

TEST(MakePlan, KeepsParametersAloneOfAFrozenUnit) {
  constexpr std::size_t kBlock = 3;  // block.1
  Case c = make_case(1, 2, 2, ReduceWhen::step);
  c.shape.purpose = c.inputs.state_for = PlanPurpose::train_snapshot;
  const std::set<std::string> kept = {"parameters", "snapshot", "snapshot of master"};
  const Plan trained = make_plan(c.inputs, c.shape, {});
  EXPECT_TRUE(std::ranges::includes(
      about(trained, kBlock, "block.1"),
      std::set<std::string>{"gradient", "gradient shard", "linear_wgrad", "norm", "parameters",
                            "publish", "reduce_gradients", "snapshot", "update"}));
  c.inputs.model.units[kBlock].traits.trained = false;
  EXPECT_EQ(about(make_plan(c.inputs, c.shape, {}), kBlock, "block.1"), kept);
}

TEST(MakePlan, SendsNoGradientToStagesWithNothingTrained) {
  Case c = make_case(0, 1, 2, ReduceWhen::step);
  c.inputs.model.config.tied_embeddings = false;
  c.inputs.model.units = model::model_units(c.inputs.model.config);
  c.inputs.layout.mesh.pipeline = 2;
  const auto sends = [&] {
    const Plan plan = make_plan(c.inputs, c.shape, {.pipeline = 1});
    return std::ranges::count_if(plan.ops,
                                 [](const Op& op) { return op.stream == Stream::send_backward; });
  };
  EXPECT_EQ(sends(), 2);
  for (const char* name : {"vocabulary", "positions", "block.0", "block.1"}) {
    EXPECT_EQ(sends(), 2);
    std::ranges::find(c.inputs.model.units, name, &model::UnitDesc::name)->traits.trained = false;
  }
  EXPECT_EQ(sends(), 0);
}

// Trap 36: over all ranks each element of the model enters the norm once, whoever holds copies.
TEST(MakePlan, CountsEveryElementOnce) {
  std::mt19937 random(5);
  for (int i = 0; i < 60; ++i) {
    Case c = random_case(random);
    divide_experts(c, random);
    divide_sequences(c, random);
    c.shape.purpose = c.inputs.state_for = PlanPurpose::train;
    std::int64_t counted = 0, padding = 0;
    for (std::int64_t r = 0; r < c.inputs.layout.mesh.size(); ++r) {
      const MeshPlace place = c.inputs.layout.mesh.place_of(r);
      const Plan plan = make_plan(c.inputs, c.shape, place);
      for (std::size_t u = 0; u < plan.shares.size(); ++u) {
        if (plan.shares[u].shard == 0) continue;
        const auto layout = unit_layout(c.inputs, c.inputs.model.units[u], place);
        for (const Range& part : counted_ranges(c.inputs, plan, u, layout)) {
          counted += part.count();
          std::int64_t named = 0;
          for (const auto& slice : zero::slices_in(c.inputs.model.units[u], layout, part))
            named += slice.part.elements();
          padding += part.count() - named;
        }
      }
    }
    EXPECT_EQ(counted - padding, model::parameter_count(c.inputs.model.units));
  }
}

TEST(MakePlan, SendsWhatTheFormulasSay) {
  for (const std::int64_t ranks : {2, 3, 4, 7}) {
    for (const std::int64_t k : {1, 3}) {
      for (int stage = 0; stage < 4; ++stage) {
        for (const ReduceWhen reduce : {ReduceWhen::step, ReduceWhen::micro}) {
          const Case c = make_case(stage, ranks, k, reduce);
          std::int64_t padded = 0;
          for (const auto& unit : c.inputs.model.units)
            padded += zero::unit_layout(unit, ranks).padded;
          const std::int64_t once =
              padded * 4 / ranks * (ranks - 1);  // one reduce-scatter or all-gather, f32
          const std::int64_t reductions = reduce == ReduceWhen::micro ? k : 1;
          const auto sent = total_wire_bytes(make_plan(c.inputs, c.shape, {}));
          const std::int64_t total = sent.intra + sent.inter;
          if (stage < 3) {
            EXPECT_EQ(total, (reductions + 1) * once) << ranks << ' ' << k << ' ' << stage;
          } else {  // two gathers a micro-batch, fewer for units still resident
            EXPECT_LE(total, (2 * k + reductions) * once);
            EXPECT_GT(total, (k + reductions) * once);
          }
        }
      }
    }
  }
}

// ZeRO++, section 3.3: within nodes everybody's slots but the own counterparts' travel once, across
// nodes one slot to each other node; section 3.1: shards travel as their blocks.
TEST(MakePlan, SendsBlocksWithinNodesThenAcross) {
  for (const auto type : {kernels::BlockType::int8, kernels::BlockType::int4}) {
    for (const ReduceWhen reduce : {ReduceWhen::step, ReduceWhen::micro}) {
      Case c = make_case(3, 6, 2, reduce);
      c.inputs.layout.node_of = {0, 0, 0, 1, 1, 1};
      test::travel_in_blocks(c.inputs, {{.block = 32}}, {{.type = type, .block = 32}});
      const auto in_blocks = [&](std::int32_t u) {
        return c.inputs.model.units[static_cast<std::size_t>(u)].traits.block > 0;
      };
      const Plan plan = make_plan(c.inputs, c.shape, {.data = 4});
      comm::WireBytes sums, gathers;
      std::int64_t slots = 0, least = 0;
      for (const Op& op : plan.ops) {
        const auto bytes = wire_bytes_of(plan, op);
        auto& of = op.kind == OpKind::reduce_gradients ? sums : gathers;
        if (op.unit < 0 || !in_blocks(op.unit)) continue;
        if (op.kind == OpKind::reduce_gradients || op.kind == OpKind::gather)
          of.intra += bytes.intra, of.inter += bytes.inter;
      }
      for (const auto& unit : c.inputs.model.units) {
        if (unit.traits.block == 0) continue;
        const std::int64_t n = zero::unit_layout(unit, 6).shard;
        slots += c.inputs.numerics.gradient_blocks->bytes(n);
        least += c.inputs.numerics.weight_blocks->bytes(n);
      }
      const std::int64_t times = reduce == ReduceWhen::micro ? 2 : 1;
      EXPECT_EQ(sums.intra, times * 2 * 2 * slots);  // to 2 peers, for 2 nodes
      EXPECT_EQ(sums.inter, times * slots);
      EXPECT_EQ(gathers.intra, 4 * gathers.inter);  // two nodes' shards, to 2 peers
      EXPECT_GE(gathers.intra + gathers.inter, 5 * least);
      EXPECT_LE(gathers.intra + gathers.inter, 5 * 4 * least);
    }
  }
}

TEST(MakePlan, SplitsTrafficByNode) {
  Case two = make_case(1, 4, 1, ReduceWhen::step);
  two.inputs.layout.node_of = {0, 0, 1, 1};
  const auto sent = total_wire_bytes(make_plan(two.inputs, two.shape, {.data = 2}));
  EXPECT_EQ(sent.intra, 2 * sent.inter);  // to a peer on the node, of 2 nodes; to one elsewhere

  // Sums of three are no subtrees of the sum of six: to 2 peers on the node and to 3 elsewhere.
  // Gathers have two hops: to 2 peers on the node, of 2 nodes; to one elsewhere.
  Case three = make_case(1, 6, 1, ReduceWhen::step);
  three.inputs.layout.node_of = {0, 0, 0, 1, 1, 1};
  const auto flat = total_wire_bytes(make_plan(three.inputs, three.shape, {.data = 4}));
  EXPECT_EQ(flat.intra * (3 + 1), flat.inter * (2 + 4));
}

// ZeRO++, section 3.2: however often a unit is gathered within a step, its shards cross between
// nodes once, and are quantised once.
TEST(MakePlan, GathersAcrossNodesOnceAStepWithSecondaryShards) {
  for (const bool blocks : {false, true}) {
    for (const std::int64_t neighbours : {0, 3, 2}) {
      Case c = make_case(3, 6, 3, ReduceWhen::step);
      c.inputs.sharding.prefetch = 0;
      c.inputs.layout.node_of = {0, 0, 0, 1, 1, 1};
      if (blocks) test::travel_in_blocks(c.inputs, {{.block = 32}}, {});
      std::int64_t slots = 0, units = 0;  // those in blocks
      for (const auto& unit : c.inputs.model.units) {
        const std::int64_t n = zero::unit_layout(unit, 6).shard;
        const bool in_blocks = unit.traits.block > 0;
        slots += in_blocks ? c.inputs.numerics.weight_blocks->bytes(n) : 4 * n;
        units += in_blocks ? 1 : 0;
      }
      const auto of_gathers = [&] {
        const Plan plan = make_plan(c.inputs, c.shape, {.data = 4});
        check(plan);
        std::int64_t inter = 0, quantised = 0;
        for (const Op& op : plan.ops) {
          if (op.kind != OpKind::gather) continue;
          inter += wire_bytes_of(plan, op).inter;
          const auto* kernel = std::get_if<kernels::KernelCall>(&op.call);
          quantised +=
              kernel != nullptr && std::holds_alternative<kernels::Quantize>(*kernel) ? 1 : 0;
        }
        return std::pair{inter, quantised};
      };
      const auto [plain, once] = of_gathers();
      EXPECT_GT(plain, 3 * slots);
      EXPECT_EQ(once, units);
      c.inputs.sharding.secondary = {.ranks = neighbours};
      const auto [spared, still_once] = of_gathers();
      EXPECT_EQ(still_once, units);
      EXPECT_EQ(spared, (neighbours == 2 ? 2 : 1) * slots);  // twos are from three, two elsewhere
    }
  }
}

/// Whether op `last` waits for `first` to be complete, perhaps by way of others.
bool comes_after(const Plan& plan, OpId last, OpId first) {
  std::vector<OpId> next{last};
  std::set<OpId> seen;
  while (!next.empty()) {
    const OpId id = next.back();
    next.pop_back();
    if (id == first) return true;
    if (id < first || !seen.insert(id).second) continue;
    next.insert(next.end(), plan.op(id).waits.begin(), plan.op(id).waits.end());
    for (OpId before = id; before-- > 0;) {
      if (plan.op(before).stream != plan.op(id).stream) continue;
      next.push_back(before);
      break;
    }
  }
  return false;
}

/// Whether both use bytes of a buffer that one of them writes.
bool share_data(const Op& a, const Op& b) {
  for (const BufferUse& x : uses_of(a)) {
    for (const BufferUse& y : uses_of(b)) {
      const bool writes = x.access != kernels::Access::read || y.access != kernels::Access::read;
      if (writes && x.buffer == y.buffer && !intersect(x.bytes, y.bytes).empty()) return true;
    }
  }
  return false;
}

// Not for one that is on its way to a later layer, because the bytes of its staging or its
// secondary shard are given away before links have come to it.
TEST(MakePlan, ComputeWaitsForGathersOfWhatItReadsAlone) {
  for (const std::int64_t prefetch : {1, 3, 8}) {
    Case c = make_case(3, 4, 2, ReduceWhen::step);
    model::ModelConfig& m = c.inputs.model.config;
    m.layers = 12, m.heads = m.kv_heads = 4, m.head_dim = 16, m.hidden = 64, m.ffn_hidden = 256;
    c.inputs.layout.node_of = {0, 0, 1, 1};
    c.inputs.sharding.prefetch = prefetch;
    c.inputs.sharding.secondary = ShardingInputs::Secondary{};
    test::travel_in_blocks(c.inputs, {{.block = 32}}, {{.block = 32}});
    const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
    check(plan);
    int waits = 0;
    for (const Op& op : plan.ops) {
      if (op.stream != Stream::compute) continue;
      for (const OpId other : op.waits) {
        if (plan.op(other).kind != OpKind::gather) continue;
        EXPECT_TRUE(share_data(op, plan.op(other)))
            << "prefetch " << prefetch << ": op " << &op - plan.ops.data() << " for " << other;
        ++waits;
      }
    }
    EXPECT_GT(waits, 2 * m.layers);
  }
}

// Each leg of a chunk goes on beside the leg before it of the next chunk; of what is staged there
// are two chunks on each leg, however large units are.
TEST(MakePlan, LegsOfChunksOverlap) {
  Case c = make_case(3, 4, 1, ReduceWhen::micro);
  c.inputs.layout.node_of = {0, 0, 1, 1};
  const kernels::BlockFormat format{.block = 32};
  test::travel_in_blocks(c.inputs, format, format);
  c.inputs.numerics.chunk_bytes = kSmallChunk;
  const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
  check(plan);
  using Legs = std::vector<Stream>;
  const Legs gathers = {Stream::gather_pack, Stream::gather_across, Stream::gather,
                        Stream::gather_unpack},
             reductions = {Stream::reduce_pack, Stream::reduce, Stream::reduce_sum,
                           Stream::reduce_across, Stream::reduce_unpack};
  int overlaps = 0;
  for (std::size_t u = 0; u < c.inputs.model.units.size(); ++u) {
    if (c.inputs.model.units[u].traits.block == 0) continue;
    for (const auto& [kind, legs] :
         {std::pair{OpKind::gather, gathers}, {OpKind::reduce_gradients, reductions}}) {
      std::vector<std::vector<OpId>> chunks(legs.size());  // of the first gather or sum first
      for (std::size_t i = 0; i < plan.ops.size(); ++i) {
        const Op& op = plan.ops[i];
        const auto leg = std::ranges::find(legs, op.stream) - legs.begin();
        if (op.unit != static_cast<std::int32_t>(u) || op.kind != kind) continue;
        ASSERT_LT(leg, std::ssize(legs));
        chunks[static_cast<std::size_t>(leg)].push_back(static_cast<OpId>(i));
      }
      for (std::size_t leg = 0; leg + 1 < legs.size(); ++leg) {
        ASSERT_GE(chunks[leg].size(), chunks[0].size());
        for (std::size_t k = 0; k + 1 < chunks[0].size(); ++k, ++overlaps) {
          EXPECT_TRUE(comes_after(plan, chunks[leg + 1][k], chunks[leg][k]));
          EXPECT_FALSE(comes_after(plan, chunks[leg][k + 1], chunks[leg + 1][k]))
              << enum_word(legs[leg]) << " of chunk " << k + 1 << " of unit " << u;
        }
      }
    }
  }
  EXPECT_GT(overlaps, 20);
  for (const Buffer& b : plan.buffers) {
    const bool staged = b.name.starts_with("parameters on") ||
                        b.name.starts_with("parameters be") ||
                        b.name.starts_with("gradients that") || b.name.starts_with("sums of nodes");
    if (staged && b.purpose == BufferPurpose::staging) {
      EXPECT_LE(b.bytes, 4 * kSmallChunk) << b.name;  // of four shards
    }
  }
}

/// How many operations of a kind have a kernel of these beside them, of the same visit: issued
/// later, but neither waits for the other.
template <typename... Kernels>
int beside_kernels(const Plan& plan, OpKind kind) {
  const auto is_one = [](const Op& op) {
    const auto* call = std::get_if<kernels::KernelCall>(&op.call);
    return call != nullptr && (std::holds_alternative<Kernels>(*call) || ...);
  };
  int count = 0;
  const auto ops = static_cast<OpId>(plan.ops.size());
  for (OpId i = 0; i < ops; ++i) {
    bool beside = false;
    for (OpId j = i + 1; plan.op(i).kind == kind && j < ops && !beside; ++j) {
      beside =
          plan.op(j).visit == plan.op(i).visit && is_one(plan.op(j)) && !comes_after(plan, j, i);
    }
    count += beside ? 1 : 0;
  }
  return count;
}

// Of the three blocks' forward and backward. Gathered: keys and values of the second of two groups
// of heads, twice, and sums of the first one. In a ring of four: keys and values three times,
// twice, and their gradients twice of three times, the last of which nothing is left to go beside.
TEST(MakePlan, KeysTravelBesideAttention) {
  for (const auto& [kind, travels] :
       {std::pair{ContextKind::gather, 3 * (2 + 1)}, {ContextKind::ring, 3 * (2 * 3 + 2)}}) {
    Case c = make_case(0, 4, 1, ReduceWhen::micro);
    c.shape.sequence = 16;
    c.inputs.layout.mesh.context = 4;
    c.inputs.layout.context = {.kind = kind, .shares = 4};
    const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
    check(plan);
    EXPECT_EQ(
        (beside_kernels<kernels::Attention, kernels::AttentionBackward>(plan, OpKind::context)),
        travels)
        << enum_word(kind);
  }
}

// Of every layer the way there and back of copies, forward and backward: one of each two exchanges
// has the shared expert beside it.
TEST(MakePlan, CopiesTravelBesideTheSharedExpert) {
  for (const auto& [shared, dispatch] :
       {std::pair{0, ExpertDispatch::exact}, std::pair{12, ExpertDispatch::exact},
        std::pair{12, ExpertDispatch::int8}}) {
    SCOPED_TRACE(enum_word(dispatch));
    Case c = make_case(0, 2, 1, ReduceWhen::micro);
    model::ModelConfig& m = c.inputs.model.config;
    m.experts = {.count = 4,
                 .hidden = 8,
                 .shared_hidden = shared,
                 .dispatch = dispatch,
                 .routing = {.choices = 1}};
    m.bias = false;
    c.inputs.model.units = model::model_units(m);
    c.inputs.layout.mesh.experts = 2;
    const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
    check(plan);
    const int beside =
        beside_kernels<kernels::Linear, kernels::LinearBackwardInput>(plan, OpKind::experts);
    if (shared == 0) {
      EXPECT_EQ(beside, 0);
    } else {
      EXPECT_GE(beside, 2 * m.layers);
    }
  }
}

/// Rows that ranks of two nodes, two each, are expected to send to the other in a step of one
/// layer, by kind of call, where each token has four of eight experts; dropout of copies and
/// recomputation as told.
struct Crossings {
  std::int64_t exchanges = 0, rows = 0, bytes = 0;
};
Crossings crossings_of(ExpertExchange exchange, double capacity, Recompute recompute) {
  Case c = make_case(0, 4, 1, ReduceWhen::micro);
  PlanInputs& in = c.inputs;
  in.model.config.layers = 1;
  give_experts(in, {.count = 8, .hidden = 8, .capacity = capacity, .routing = {.choices = 4}}, 4,
               {0, 0, 1, 1});
  in.layout.expert_exchange = exchange;
  in.recompute = recompute;
  const Plan plan = make_plan(in, c.shape, {.data = 2});
  check(plan);
  Crossings all;
  for (const Op& op : plan.ops) {
    if (op.kind != OpKind::experts) continue;
    all.bytes += wire_bytes_of(plan, op).inter;
    const auto* call = std::get_if<comm::CollectiveCall>(&op.call);
    if (const auto* rows = std::get_if<comm::ExchangeRows>(call);
        rows != nullptr && rows->across > 0)
      ++all.exchanges, all.rows += rows->across;
  }
  return all;
}

// Half of the experts are elsewhere: of four choices two, and that there is one has probability
// 1 - (4 3 2 1) / (8 7 6 5) = 69 / 70. A token goes there and comes back forward and backward;
// where blocks are made again it goes there again, and copies, but no sums of them, come back
// again.
TEST(MakePlan, TokensCrossNodesOnce) {
  const Case c = make_case(0, 4, 1, ReduceWhen::micro);
  const std::int64_t tokens = c.shape.micro * c.shape.sequence;
  for (const double capacity : {0.0, 1.5}) {
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      SCOPED_TRACE(fmt::format("capacity {}, {}", capacity, enum_word(recompute)));
      const Crossings direct = crossings_of(ExpertExchange::direct, capacity, recompute),
                      by_node = crossings_of(ExpertExchange::by_node, capacity, recompute);
      const bool again = recompute == Recompute::full;
      const std::int64_t of_copies = again ? 6 : 4, of_tokens = again ? 5 : 4;
      EXPECT_EQ(direct.exchanges, of_copies);
      EXPECT_EQ(direct.rows, of_copies * 2 * tokens);
      EXPECT_EQ(by_node.exchanges, of_tokens);
      EXPECT_EQ(by_node.rows, of_tokens * ((69 * tokens + 69) / 70));
      EXPECT_LT(by_node.bytes, direct.bytes);
    }
  }
}

// Of twelve ranks on two nodes the four in the middle are on both: all groups go the direct way.
TEST(MakePlan, ExpertGroupsThatLieOtherwiseHaveOnePlan) {
  Case c = make_case(1, 12, 1, ReduceWhen::step);
  PlanInputs& in = c.inputs;
  in.layout.expert_exchange = ExpertExchange::by_node;
  const model::ExpertsConfig experts{.count = 8, .hidden = 8, .routing = {.choices = 2}};
  give_experts(in, experts, 4, {0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1});
  expect_proved(c);
  for (std::int64_t r = 0; r < 12; ++r)
    EXPECT_EQ(expert_route(in, {.data = r}).hops.size(), 1U) << r;
  in.layout.node_of = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5};
  expect_proved(c);
  EXPECT_EQ(expert_route(in, {.data = 5}).hops.size(), 2U);
}

// In each pair, forward and backward, whoever has begun an exchange lets the other go on; a unit of
// both is gathered once.
TEST(MakePlan, MicroBatchesTakeTurnsAtExchangesOfExperts) {
  const auto plan_of = [](bool overlap) {
    Case c = make_case(3, 4, 5, ReduceWhen::micro);
    give_experts(c.inputs, {.count = 8, .hidden = 8, .routing = {.choices = 2}}, 4, {});
    c.inputs.layout.overlap_experts = overlap;
    c.inputs.sharding.prefetch = 0;
    expect_proved(c);
    return make_plan(c.inputs, c.shape, {});
  };
  const Plan woven = plan_of(true), plain = plan_of(false);
  std::vector<std::int32_t> exchanges;  // micro-batches
  for (std::size_t i = 0; i < woven.ops.size(); ++i) {
    const Op& op = woven.ops[i];
    const auto* call = std::get_if<comm::CollectiveCall>(&op.call);
    if (call != nullptr && std::holds_alternative<comm::ExchangeRows>(*call))
      exchanges.push_back(op.micro_batch);
  }
  ASSERT_EQ(std::ssize(exchanges) % 5, 0);
  const std::size_t each = exchanges.size() / 5;  // of a micro-batch, both ways
  for (std::size_t i = 0; i < exchanges.size(); ++i) {
    const std::size_t pair = i / (2 * each);
    EXPECT_EQ(exchanges[i], pair == 2 ? 4 : 2 * pair + i % 2) << i;
  }
  const auto gathers = [](const Plan& plan) {
    return std::ranges::count_if(plan.ops, [](const Op& op) { return op.kind == OpKind::gather; });
  };
  // Of three rounds in place of five; head and embedding stay for backward.
  EXPECT_LT(gathers(woven), gathers(plain) * 3 / 4);
}

TEST(Recompute, NeedsLessMemoryTheMoreItDrops) {
  std::vector<std::int64_t> bytes;
  for (const Recompute policy : {Recompute::none, Recompute::selective, Recompute::full}) {
    Case c = make_case(0, 1, 1, ReduceWhen::step);
    c.inputs.recompute = policy;
    c.inputs.model.config.layers = 8;
    c.inputs.model.units = model::model_units(c.inputs.model.config);
    bytes.push_back(make_plan(c.inputs, c.shape, {}).arena(ArenaId::step));
  }
  EXPECT_LT(bytes[1], bytes[0]);
  EXPECT_LT(bytes[2], bytes[1]);
}

// Of a layer's inner columns there are those of some rows.
TEST(Recompute, InnerColumnsOfSomeRowsTakeLessMemory) {
  std::vector<std::int64_t> bytes;
  for (const std::int64_t rows : {0, 50}) {
    Case c = make_case(0, 1, 1, ReduceWhen::step);
    c.inputs.inner_rows = rows;
    c.shape.micro = 40;
    c.inputs.model.config.ffn_hidden = 4000;
    c.inputs.model.units = model::model_units(c.inputs.model.config);
    bytes.push_back(make_plan(c.inputs, c.shape, {}).arena(ArenaId::step));
  }
  const std::int64_t saved = 40 * 10 * 4000 * 4;  // of one layer, before its activation
  EXPECT_LT(bytes[1] + 3 * saved, bytes[0]);
}

// What a plan says it computes again is what a plan that recomputes nothing lacks.
TEST(Recompute, MarksWhatItComputesAgain) {
  std::size_t without = 0;
  for (const Recompute policy : {Recompute::none, Recompute::selective, Recompute::full}) {
    Case c = make_case(0, 1, 1, ReduceWhen::step);
    c.inputs.recompute = policy, c.inputs.numerics.layout_mode = true;
    const Plan plan = make_plan(c.inputs, c.shape, {});
    const auto again = std::ranges::count_if(plan.ops, &Op::again);
    if (policy == Recompute::none) without = plan.ops.size();
    EXPECT_EQ(again > 0, policy != Recompute::none);
    EXPECT_EQ(plan.ops.size() - static_cast<std::size_t>(again), without) << enum_word(policy);
  }
}

TEST(Offload, SavedActivationsLeaveTheDevice) {
  Case c = make_case(0, 1, 1, ReduceWhen::step);
  c.inputs.model.config.layers = 16;
  c.inputs.model.units = model::model_units(c.inputs.model.config);
  c.shape.micro = 20;  // so that activations are far more than gradients
  const Plan stay = make_plan(c.inputs, c.shape, {});
  c.inputs.offload = {.activations = Location::host, .ahead = 1};
  const Plan leave = make_plan(c.inputs, c.shape, {});
  EXPECT_EQ(stay.arena(ArenaId::host), 0);
  EXPECT_EQ(leave.arena(ArenaId::state), stay.arena(ArenaId::state));
  // What is saved of a layer stays for the last three visits before backward turns and, meanwhile,
  // of one layer that leaves and two that come back.
  const auto saved_of = [](const Plan& plan, Location location) {
    std::int64_t bytes = 0;
    for (const Buffer& b : plan.buffers) {
      const bool counts = b.purpose == BufferPurpose::activations && b.location == location;
      bytes += counts && !b.persistent ? b.bytes : 0;
    }
    return bytes;
  };
  const std::int64_t saved = saved_of(stay, Location::device);
  EXPECT_GT(saved_of(leave, Location::host), saved * 12 / 16);
  EXPECT_LT(leave.arena(ArenaId::step), stay.arena(ArenaId::step) - saved * 9 / 16);
  std::map<BufferId, int> away;  // by buffer of the host
  for (const Op& op : leave.ops) {
    if (const auto* copy = std::get_if<Copy>(&op.call)) {
      if (op.kind == OpKind::evict) ++away[buffer_of(copy->to)];
      if (op.kind == OpKind::fetch) {
        EXPECT_EQ(away[buffer_of(copy->from)], 1);
      }
    }
  }
  EXPECT_FALSE(away.empty());
  // With the whole step between, nothing leaves.
  c.inputs.offload.ahead = 1000;
  EXPECT_EQ(make_plan(c.inputs, c.shape, {}).arena_bytes, stay.arena_bytes);
}

// What rounding loses of gradients that live elsewhere is on the device of a few layers at a time,
// however many there are, also where a checkpoint takes its sums.
TEST(Offload, ErrorsComeToTheDeviceLayerByLayer) {
  const auto most = [](std::int64_t layers) {
    Case c = make_case(2, 4, 2, ReduceWhen::step);
    c.inputs.model.config.layers = layers;
    c.inputs.layout.node_of = {0, 0, 1, 1};
    test::travel_in_blocks(c.inputs, {}, {{.type = kernels::BlockType::int4, .block = 32}});
    c.inputs.numerics.error_feedback = true;
    c.inputs.offload = {.gradients = Location::host, .ahead = 1};
    c.inputs.state_for = c.shape.purpose = PlanPurpose::train_snapshot;
    const Plan plan = make_plan(c.inputs, c.shape, {});
    const auto lives = buffer_lives(plan);
    std::int64_t largest = 0, kept = 0;
    for (std::int64_t i = 0; i < std::ssize(plan.ops); ++i) {
      std::int64_t held = 0;
      for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
        const Buffer& buffer = plan.buffers[b];
        if (buffer.purpose != BufferPurpose::errors) continue;
        if (buffer.persistent) {
          EXPECT_EQ(buffer.location, Location::host) << buffer.name;
          ++kept;
        } else if (buffer.location == Location::device && lives[b].begin <= i &&
                   i <= lives[b].end) {
          held += buffer.bytes;
        }
      }
      largest = std::max(largest, held);
    }
    EXPECT_GT(kept, 0);
    return largest;
  };
  EXPECT_EQ(most(24), most(12));
}

TEST(Zero, ShardsStateByStage) {
  const auto state = [](int stage) {
    const Case c = make_case(stage, 4, 1, ReduceWhen::step);
    return make_plan(c.inputs, c.shape, {}).arena(ArenaId::state);
  };
  // f32: parameters P, moments 2 P. Stage 0: 3 P; 1 and 2: P + 2 P / 4; 3: 3 P / 4.
  const auto full = static_cast<double>(state(0));
  EXPECT_NEAR(static_cast<double>(state(1)) / full, 0.5, 0.05);
  EXPECT_EQ(state(1), state(2));
  EXPECT_NEAR(static_cast<double>(state(3)) / full, 0.25, 0.05);
}

}  // namespace
}  // namespace tessera::plan
