// Plans of generation: proved on many layouts, and refused where they go on from what is not there.
#include <gtest/gtest.h>

#include "unit/plan/cases.hpp"

namespace tessera::plan {
namespace {

/// A pass of `micro_batches` x `micro` sequences of `tokens`, of which there may be `slots`; each
/// may have three pages, of seven for all of them.
void generate(Case& c, std::int64_t micro, std::int64_t micro_batches, std::int64_t tokens,
              std::int64_t slots) {
  constexpr std::int64_t kRoom = 2 * kernels::kPageTokens + 1, kPages = 7;
  c.inputs.cache = {.slots = slots, .room = kRoom, .pages = kPages};
  c.shape = {.purpose = PlanPurpose::generate,
             .sequence = tokens,
             .micro = micro,
             .micro_batches = micro_batches,
             .slots = slots,
             .room = kRoom,
             .pages = kPages};
}

Case small_case(std::int64_t tokens) {
  Case c = make_case(3, 2, 1, ReduceWhen::step);
  c.inputs.layout.mesh.tensor = c.inputs.layout.tensor_chunks = 2;
  c.inputs.model.units = model::model_units(c.inputs.model.config, 2);
  c.inputs.state_for = PlanPurpose::generate;
  generate(c, 3, 2, tokens, 6);
  return c;
}

TEST(Generation, IsProvedOnManyLayouts) {
  std::mt19937 random(29);
  int proved = 0;
  for (int i = 0; i < 300; ++i) {
    Case c = random_case(random);
    const model::ModelConfig& m = c.inputs.model.config;
    if (m.head.labels > 0 || m.head.pooling != Pooling::none || m.head.hidden > 0) continue;
    const auto pick = [&](int n) { return 1 + static_cast<std::int64_t>(random() % n); };
    const std::int64_t micro = pick(3), count = pick(3);
    generate(c, micro, count, pick(5), micro * count + pick(2) - 1);
    c.shape.renews = pick(2) == 1;
    c.inputs.cache->latents = m.latent && pick(2) == 1;
    if (pick(2) == 1) c.inputs.offload.cache = Location::host;
    SCOPED_TRACE(i);
    expect_proved(c);
    ++proved;
  }
  EXPECT_GT(proved, 100);
}

TEST(Generation, HoldsNeitherOptimizerStateNorGradients) {
  const Case c = small_case(1);
  std::int64_t caches = 0;
  for (const Buffer& b : make_plan(c.inputs, c.shape, {}).buffers) {
    EXPECT_TRUE(!b.persistent || b.purpose == BufferPurpose::parameters ||
                b.purpose == BufferPurpose::control || b.purpose == BufferPurpose::cache)
        << b.name;
    if (b.purpose == BufferPurpose::cache) caches += b.bytes;
  }
  // Keys and values of a tensor rank's head, of 7 pages in three layers.
  EXPECT_EQ(caches, 3 * 2 * 7 * kernels::kPageTokens * 8 * size_of(DType::f32));
}

// The memory of a CPU is the host's already.
TEST(Generation, KeepsCachesWhereTheDeckSays) {
  for (const bool device_is_host : {true, false}) {
    Case c = small_case(1);
    c.inputs.offload.cache = Location::host;
    c.inputs.offload.device_is_host = device_is_host;
    for (const Buffer& b : make_plan(c.inputs, c.shape, {}).buffers) {
      const bool moved = b.purpose == BufferPurpose::cache && !device_is_host;
      EXPECT_EQ(b.location, moved ? Location::host : Location::device) << b.name;
    }
  }
}

// Ranks of which some begin prompts while others go on make the same gathers.
TEST(Generation, GathersAlikeInEveryPass) {
  const auto gathers = [](const Plan& plan) {
    std::vector<std::tuple<std::int32_t, std::int64_t, std::int64_t>> all;
    for (const Op& op : plan.ops) {
      if (op.group != MeshGroup::data) continue;
      const auto* call = std::get_if<comm::CollectiveCall>(&op.call);
      if (call == nullptr) continue;
      const auto& gather = std::get<comm::AllGather>(*call);
      all.emplace_back(op.unit, gather.shard.elements(), gather.full.elements());
    }
    return all;
  };
  for (const std::int64_t prefetch : {0, 1, 3}) {
    Case c = small_case(1);
    c.inputs.sharding.prefetch = prefetch;
    generate(c, 6, 1, 1, 6);
    const auto of_tokens = gathers(make_plan(c.inputs, c.shape, {}));
    EXPECT_GE(std::ssize(of_tokens), std::ssize(c.inputs.model.units) - 1);
    generate(c, 1, 1, 8, 6);
    EXPECT_EQ(gathers(make_plan(c.inputs, c.shape, {})), of_tokens);
  }
}

/// An evaluation of K micro-batches whose scores the host reads.
Case scored_case(Case c, Scores scores) {
  c.shape.purpose = PlanPurpose::evaluate;
  c.shape.scores = scores;
  c.shape.of_targets = scores == Scores::outputs;
  c.inputs.most_scores = c.shape.micro_batches * c.inputs.losses(c.shape) + 3;
  return c;
}

TEST(Scores, AreProvedOnManyLayouts) {
  std::mt19937 random(31);
  int proved = 0;
  for (int i = 0; i < 200; ++i) {
    Case c = random_case(random);
    const model::ModelConfig& m = c.inputs.model.config;
    const bool pooled = m.head.labels > 0 && m.head.pooling != Pooling::none;
    if (!pooled && (m.head.labels > 0 || c.inputs.preference)) continue;
    const Scores scores = pooled                               ? Scores::outputs
                          : m.head.values && random() % 2 == 0 ? Scores::values
                                                               : Scores::losses;
    SCOPED_TRACE(i);
    c.shape.adapted = random() % 2 == 0;
    expect_proved(scored_case(c, scores));
    ++proved;
  }
  EXPECT_GT(proved, 80);
}

// Parameters cross between nodes in the pass that renews what nodes keep of them, and in no other.
TEST(Generation, BringsParametersFromOtherNodesOnce) {
  const auto crosses = [](const Plan& plan) {
    std::int64_t bytes = 0;
    for (const Op& op : plan.ops) bytes += wire_bytes_of(plan, op).inter;
    return bytes;
  };
  for (const auto& [codes, nodes] :
       {std::pair{false, std::vector{0, 0, 1, 1}}, std::pair{true, std::vector{0, 0, 1, 1}},
        std::pair{false, std::vector{0, 1, 0, 1}}}) {
    Case c = make_case(3, 4, 1, ReduceWhen::step);
    c.inputs.layout.node_of = nodes;  // filled one after another, or dealt
    c.inputs.state_for = PlanPurpose::generate;
    if (codes) {
      c.inputs.model.config.frozen = {"block.*"};
      c.inputs.model.units = model::model_units(c.inputs.model.config, 1,
                                                {.codes = kernels::BlockFormat{.block = 16}});
    }
    generate(c, 6, 1, 1, 6);
    const Plan plain = make_plan(c.inputs, c.shape, {.data = 1});
    c.inputs.sharding.secondary = ShardingInputs::Secondary{};
    Plan kept = make_plan(c.inputs, c.shape, {.data = 1});
    c.shape.renews = true;
    const Plan renewing = make_plan(c.inputs, c.shape, {.data = 1});
    EXPECT_GT(crosses(renewing), 0);
    EXPECT_LT(crosses(renewing), crosses(plain));  // which gathers the tied matrix twice
    EXPECT_EQ(crosses(kept), 0);
    // The next pass has what this one leaves; without that there is nothing.
    EXPECT_NO_THROW(check(kept));
    kept.shape.renews = true;
    EXPECT_THROW(check(kept), InternalError);
  }
}

/// A pass over frozen blocks in codes of 16 elements.
Plan plan_of_codes(int stage, std::int64_t ranks, std::int64_t tokens, Location home) {
  Case c = make_case(stage, ranks, 1, ReduceWhen::step);
  c.inputs.state_for = PlanPurpose::generate;
  c.inputs.model.config.frozen = {"block.*"};
  c.inputs.model.units =
      model::model_units(c.inputs.model.config, 1, {.codes = kernels::BlockFormat{.block = 16}});
  c.inputs.offload.parameters = home, c.inputs.offload.device_is_host = true;
  generate(c, 1, 1, tokens, 1);
  return make_plan(c.inputs, c.shape, {});
}

/// Products of such a pass.
struct OfCodes {
  int products = 0, multiplied = 0;  // of codes
  int turned = 0;                    // units, into elements
  std::int64_t windows = 0;          // bytes
};
OfCodes of_codes(int stage, std::int64_t ranks, std::int64_t tokens, Location home) {
  const Plan plan = plan_of_codes(stage, ranks, tokens, home);
  OfCodes found;
  for (const Op& op : plan.ops) {
    found.turned += kernel_of<kernels::SumQuantized>(op) != nullptr ? 1 : 0;
    const auto* product = kernel_of<kernels::Linear>(op);
    if (product == nullptr) continue;
    ++found.products;
    if (product->codes) ++found.multiplied;
  }
  for (const Buffer& b : plan.buffers)
    found.windows += b.purpose == BufferPurpose::gather_window ? b.bytes : 0;
  return found;
}

TEST(Generation, MultipliesCodesWhereARankHasThem) {
  for (const Location home : {Location::device, Location::host, Location::disk}) {
    SCOPED_TRACE(static_cast<int>(home));
    const OfCodes few = of_codes(0, 1, 4, home), many = of_codes(0, 1, 5, home);
    // Four matrices of each of three layers, and the head.
    EXPECT_EQ(few.products, 13);
    EXPECT_EQ(few.multiplied, 12);
    EXPECT_EQ(few.turned, 0);
    EXPECT_EQ(many.multiplied, 0);
    EXPECT_EQ(many.turned, 3);
    EXPECT_LT(few.windows, many.windows);
    const OfCodes of_all = of_codes(0, 2, 4, home), in_shards = of_codes(3, 2, 4, home);
    EXPECT_EQ(of_all.multiplied, 12);
    EXPECT_EQ(in_shards.multiplied, 0);
    EXPECT_EQ(in_shards.turned, 3);
  }
}

// Whichever way they have come.
TEST(Check, RejectsCodesWithScalesOfOthers) {
  for (const Location home : {Location::device, Location::disk}) {
    const Plan plan = plan_of_codes(0, 1, 1, home);
    int broken = 0;
    for (std::size_t i = 0; i < plan.ops.size(); ++i) {
      const auto* product = kernel_of<kernels::Linear>(plan.ops[i]);
      if (product == nullptr || !product->codes) continue;
      for (const std::int64_t bytes : {-4, 4}) {
        Plan wrong = plan;
        auto& call = std::get<kernels::Linear>(std::get<kernels::KernelCall>(wrong.ops[i].call));
        call.codes.scales.data += bytes;
        EXPECT_THROW(check(wrong), InternalError) << i;
        ++broken;
      }
    }
    EXPECT_EQ(broken, 24);
  }
}

// What other ranks have updated comes in the pass that renews parameters, and in no other; and
// these do not change what is kept.
TEST(Generation, PublishesParametersOnce) {
  for (const int stage : {1, 2}) {
    Case c = make_case(stage, 2, 1, ReduceWhen::step);
    generate(c, 3, 1, 1, 3);
    const auto gathers = [&](bool renews) {
      c.shape.renews = renews;
      const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
      return std::ranges::count(plan.ops, OpKind::publish, &Op::kind);
    };
    EXPECT_EQ(gathers(false), 0);
    EXPECT_EQ(gathers(true), std::ssize(c.inputs.model.units));
  }
  Case c = make_case(3, 4, 1, ReduceWhen::step);
  c.inputs.layout.node_of = {0, 0, 1, 1};
  c.inputs.sharding.secondary = ShardingInputs::Secondary{};
  generate(c, 3, 1, 1, 3);
  c.shape.renews = true;
  Plan changes = make_plan(c.inputs, c.shape, {});
  changes.shape.renews = false;
  EXPECT_THROW(check(changes), InternalError);
}

template <typename F>
void expect_rejected_with(const Plan& plan, F&& change) {
  int changed = 0;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    Plan broken = plan;
    auto* kernel = std::get_if<kernels::KernelCall>(&broken.ops[i].call);
    if (kernel == nullptr || !change(*kernel, broken.ops[i])) continue;
    ++changed;
    EXPECT_THROW(check(broken), InternalError) << i;
  }
  EXPECT_GT(changed, 0);
}

TEST(Generation, IsRefusedWhereItGoesOnFromWhatIsNotThere) {
  using kernels::Attention, kernels::Remember;
  for (const std::int64_t tokens : {1, 4}) {
    const Case c = small_case(tokens);
    const Plan plan = make_plan(c.inputs, c.shape, {});
    EXPECT_NO_THROW(check(plan));
    std::vector<LoadBatch> batches;
    for (const Op& op : plan.ops) {
      if (const auto* batch = std::get_if<LoadBatch>(&op.call)) batches.push_back(*batch);
    }
    ASSERT_EQ(batches.size(), 2U);
    // Keys or values that are never put there, or in another place.
    expect_rejected_with(plan, [](kernels::KernelCall& call, Op&) {
      if (!std::holds_alternative<Remember>(call)) return false;
      call = kernels::Fill{.out = std::get<Remember>(call).x};
      return true;
    });
    // The other micro-batch's sequences.
    expect_rejected_with(plan, [&](kernels::KernelCall& call, Op& op) {
      const View& other = batches[op.micro_batch == 0 ? 1 : 0].cached;
      if (auto* puts = std::get_if<Remember>(&call)) return puts->cached = other, true;
      if (auto* attention = std::get_if<Attention>(&call)) return attention->cached = other, true;
      return false;
    });
    expect_rejected_with(plan, [&](kernels::KernelCall& call, Op& op) {
      const View& other = batches[op.micro_batch == 0 ? 1 : 0].pages;
      if (auto* puts = std::get_if<Remember>(&call)) return puts->pages = other, true;
      if (auto* attention = std::get_if<Attention>(&call)) return attention->pages = other, true;
      return false;
    });
    // Attention to another layer's cache.
    std::optional<View> first;
    expect_rejected_with(plan, [&](kernels::KernelCall& call, Op&) {
      auto* attention = std::get_if<Attention>(&call);
      if (attention == nullptr) return false;
      if (!first) first = attention->k;
      const bool other = attention->k.data != first->data;
      attention->k = *first;
      return other;
    });
    // Another micro-batch's logits.
    expect_rejected_with(plan, [&](kernels::KernelCall& call, Op& op) {
      auto* convert = std::get_if<kernels::Convert>(&call);
      if (convert == nullptr || buffer_of(convert->out) != buffer_of(plan.logits)) return false;
      const std::int64_t bytes = plan.logits.span_bytes() / plan.shape.micro_batches;
      convert->out.data += op.micro_batch == 0 ? bytes : -bytes;
      return true;
    });
    // Logits that nobody makes.
    Plan without = plan;
    for (Op& op : without.ops) {
      const auto* kernel = std::get_if<kernels::KernelCall>(&op.call);
      const auto* convert = kernel == nullptr ? nullptr : std::get_if<kernels::Convert>(kernel);
      if (convert != nullptr && buffer_of(convert->out) == buffer_of(plan.logits))
        op.call = kernels::KernelCall{kernels::Fill{.out = convert->x}};
      const auto* call = std::get_if<comm::CollectiveCall>(&op.call);
      const auto* gather = call == nullptr ? nullptr : std::get_if<comm::AllGather>(call);
      if (gather != nullptr && buffer_of(gather->full) == buffer_of(plan.logits))
        op.call = kernels::KernelCall{kernels::Fill{.out = batches[0].tokens}};
    }
    EXPECT_THROW(check(without), InternalError);
  }
}

// Each micro-batch's targets once, in their own place.
TEST(Scores, AreRefusedWhereTheyAreOfOthers) {
  const auto copies = [](Plan& plan) {
    std::vector<kernels::Convert*> all;
    for (Op& op : plan.ops) {
      auto* kernel = std::get_if<kernels::KernelCall>(&op.call);
      auto* convert = kernel == nullptr ? nullptr : std::get_if<kernels::Convert>(kernel);
      if (convert != nullptr && buffer_of(convert->out) == buffer_of(plan.scores))
        all.push_back(convert);
    }
    return all;
  };
  const Case c = scored_case(make_case(1, 2, 2, ReduceWhen::step), Scores::losses);
  const Plan plan = make_plan(c.inputs, c.shape, {});
  EXPECT_NO_THROW(check(plan));
  Plan swapped = plan;
  ASSERT_EQ(copies(swapped).size(), 2U);
  std::swap(copies(swapped)[0]->out, copies(swapped)[1]->out);
  EXPECT_THROW(check(swapped), InternalError);
  Plan lost = plan;
  for (Op& op : lost.ops) {
    auto* kernel = std::get_if<kernels::KernelCall>(&op.call);
    auto* convert = kernel == nullptr ? nullptr : std::get_if<kernels::Convert>(kernel);
    if (convert == nullptr || buffer_of(convert->out) != buffer_of(plan.scores)) continue;
    *kernel = kernels::Fill{.out = convert->x};
    break;
  }
  EXPECT_THROW(check(lost), InternalError);
  for (const Scores scores : {Scores::losses, Scores::values}) {
    Case valued = c;
    valued.inputs.model.config.head.values = true;
    valued.inputs.model.units = model::model_units(valued.inputs.model.config);
    valued.shape.scores = scores;
    Plan others = make_plan(valued.inputs, valued.shape, {});
    EXPECT_NO_THROW(check(others));
    ASSERT_EQ(copies(others).size(), 2U);
    copies(others)[1]->x = copies(others)[0]->x;
    EXPECT_THROW(check(others), InternalError);
  }
}

}  // namespace
}  // namespace tessera::plan
