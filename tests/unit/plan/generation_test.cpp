// Plans of generation: proved on many layouts, and refused where they go on from what is not there.
#include <gtest/gtest.h>

#include "unit/plan/cases.hpp"

namespace tessera::plan {
namespace {

/// A pass of `micro_batches` x `micro` sequences of `tokens`, in caches of `slots`.
void generate(Case& c, std::int64_t micro, std::int64_t micro_batches, std::int64_t tokens,
              std::int64_t slots) {
  c.inputs.cache = {.slots = slots, .room = 12};
  c.shape = {.purpose = PlanPurpose::generate,
             .sequence = tokens,
             .micro = micro,
             .micro_batches = micro_batches,
             .slots = slots,
             .room = 12};
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
    c.inputs.cache->latents = m.latent && pick(2) == 1;
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
  // Keys and values of a tensor rank's head, of 6 slots in three layers.
  EXPECT_EQ(caches, 3 * 2 * 6 * 12 * 8 * size_of(DType::f32));
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

}  // namespace
}  // namespace tessera::plan
