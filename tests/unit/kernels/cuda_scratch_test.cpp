#include "kernels/cuda/scratch.hpp"

#include "core/math.hpp"
#include "kernels/cuda/sdpa_rules.hpp"
#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::cuda {
namespace {

struct Shape {
  std::int64_t samples, tokens, heads, kv_heads, dim;
};

/// q, k and v are columns of one matrix; addresses are nobody's, as while a plan is made.
AttentionBackward call_of(const Shape& s, DType type) {
  const std::int64_t kv = s.kv_heads * s.dim, queries = s.heads * s.dim;
  auto* anywhere = reinterpret_cast<std::byte*>(4096);
  const View qkv(anywhere, type, {s.samples, s.tokens, queries + 2 * kv});
  const View out(anywhere, type, {s.samples, s.tokens, queries});
  const View q = qkv.col_range(0, queries), k = qkv.col_range(queries, kv),
             v = qkv.col_range(queries + kv, kv);
  return {.q = q,
          .k = k,
          .v = v,
          .out = out,
          .lse = View(anywhere, DType::f32, {s.samples, s.heads, s.tokens}),
          .d_out = out,
          .d_q = q,
          .d_k = k,
          .d_v = v,
          .shape = {.heads = s.heads, .kv_heads = s.kv_heads, .head_dim = s.dim, .scale = 1}};
}
Attention forward_of(const AttentionBackward& a) {
  return {.q = a.q,
          .k = a.k,
          .v = a.v,
          .out = a.out,
          .lse = a.lse,
          .shape = a.shape,
          .dropout = a.dropout,
          .first = a.first,
          .first_key = a.first_key,
          .tokens = a.tokens};
}

/// With a limit that no call here but the largest meets.
constexpr std::int64_t kMostScores = std::int64_t{512} << 20;
std::optional<SdpaPlan> plan_of(const AttentionBackward& call) {
  return sdpa_plan(call, kMostScores);
}

// What cuDNN 9.19 answered for these shapes: gradients of scores, and of every query head's keys
// and values in 16 bits (sm_80, sm_90) or f32 (sm_100).
TEST(Sdpa, WorkspaceCoversWhatTheLibraryAsksFor) {
  const auto workspace = [](const Shape& s) {
    return plan_of(call_of(s, DType::bf16)).value().workspace_bytes;
  };
  EXPECT_GE(workspace({4, 1024, 12, 12, 64}), 100663552);
  EXPECT_GE(workspace({1, 2048, 32, 8, 128}), 301990144);
  EXPECT_GE(workspace({2, 1000, 16, 16, 80}), 67109120);
  EXPECT_GE(workspace({1, 256, 4, 1, 128}), 1048704);
}

// The most of what it answered for sm_80, sm_86, sm_89, sm_90 and sm_100.
TEST(Sdpa, WorkspaceOfSumsInAnyOrderCoversWhatTheLibraryAsksFor) {
  const auto plan = [](const Shape& s) {
    AttentionBackward call = call_of(s, DType::bf16);
    call.order = SumOrder::any;
    return plan_of(call).value();
  };
  EXPECT_GE(plan({8, 1024, 12, 12, 64}).workspace_bytes, 50724992);
  EXPECT_GE(plan({1, 2048, 32, 8, 128}).workspace_bytes, 100925568);
  EXPECT_GE(plan({2, 1000, 12, 12, 64}).workspace_bytes, 12384128);
  EXPECT_GE(plan({2, 100, 16, 4, 32}).workspace_bytes, 1258112);
  EXPECT_GE(plan({2, 512, 16, 16, 96}).workspace_bytes, 12648576);
  EXPECT_GE(plan({1, 4096, 32, 32, 128}).workspace_bytes, 134742144);
  EXPECT_EQ(plan({8, 1024, 25, 25, 64}).samples, 8) << "at once, as no scores are written";
  EXPECT_EQ(plan({4, 4096, 32, 32, 128}).samples, 1) << "where that is too much";
  EXPECT_EQ(plan({4, 16384, 32, 32, 128}).samples, 1) << "however long";
}

TEST(Sdpa, ABackwardTakesAsManySamplesAtATimeAsFit) {
  const auto samples = [](const Shape& s) -> std::int64_t {
    const auto plan = plan_of(call_of(s, DType::f16));
    return plan ? plan->samples : 0;
  };
  EXPECT_EQ(samples({4, 1024, 12, 12, 64}), 4);
  EXPECT_EQ(samples({8, 1024, 25, 25, 64}), 4);
  EXPECT_EQ(samples({7, 1024, 25, 25, 64}), 1) << "only 1 and 7 divide 7";
  EXPECT_EQ(samples({2, 2048, 32, 32, 128}), 1);
  EXPECT_EQ(samples({2, 4096, 32, 32, 128}), 0);
}

TEST(Sdpa, TakesKeysBeforeQueriesAndThoseUpToThem) {
  const auto taken = [](std::int64_t first, std::int64_t first_key) {
    AttentionBackward part = call_of({2, 128, 8, 4, 64}, DType::bf16);
    part.tokens = 512, part.first = first, part.first_key = first_key;
    check(part);
    EXPECT_EQ(plan_of(part).has_value(), sdpa_plan(forward_of(part)).has_value());
    return plan_of(part).has_value();
  };
  EXPECT_TRUE(taken(128, 128));
  EXPECT_TRUE(taken(384, 128));
  EXPECT_TRUE(taken(255, 128)) << "the first query is the last key's";
  EXPECT_FALSE(taken(254, 128)) << "it does not see the last key";
  EXPECT_FALSE(taken(100, 128)) << "it sees none";
  EXPECT_FALSE(taken(0, 128));
}

TEST(Sdpa, LeavesToTheOwnKernelWhatTheLibraryDoesNotDo) {
  const Shape shape{2, 128, 8, 4, 64};
  const AttentionBackward good = call_of(shape, DType::bf16);
  EXPECT_TRUE(plan_of(good));
  EXPECT_TRUE(sdpa_plan(forward_of(good)));
  const auto refused = [](const AttentionBackward& a) {
    return !plan_of(a) && !sdpa_plan(forward_of(a));
  };
  EXPECT_TRUE(refused(call_of(shape, DType::f32)));
  EXPECT_TRUE(refused(call_of({2, 63, 8, 4, 64}, DType::bf16))) << "few queries";
  EXPECT_TRUE(refused(call_of({2, 128, 8, 4, 136}, DType::bf16))) << "wide heads";
  EXPECT_TRUE(refused(call_of({2, 128, 8, 4, 60}, DType::bf16))) << "parts of vectors";
  AttentionBackward call = good;
  call.dropout.p = 0.1F;
  EXPECT_TRUE(refused(call)) << "its own random numbers";
  call = good, call.shape.group = 3;
  EXPECT_TRUE(refused(call)) << "uneven groups";
  call = good, call.shape.group = 2, call.shape.skip = 1;
  EXPECT_TRUE(refused(call)) << "a group that begins elsewhere";
  call = good, call.shape.group = 2;
  EXPECT_FALSE(refused(call));
  call = good, call.q.ld += 4;
  EXPECT_TRUE(refused(call)) << "rows between vectors";
  Attention cached = forward_of(good);
  cached.cached = View(good.q.data, DType::i32, {2, kCachedColumns});
  EXPECT_FALSE(sdpa_plan(cached)) << "a cache";
}

// Llama 8B at 4096 tokens: a GiB of scores' gradients.
TEST(Sdpa, OneSampleHasTheLimitThatTheDeviceIsMadeWith) {
  const AttentionBackward large = call_of({2, 4096, 32, 8, 128}, DType::bf16);
  const std::int64_t scores = std::int64_t{1} << 30;
  const auto plan = sdpa_plan(large, scores);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->samples, 1);
  EXPECT_GE(plan->workspace_bytes, scores);
  EXPECT_FALSE(sdpa_plan(large, scores - 1));
  EXPECT_EQ(make_cuda_planner(scores)->scratch_bytes(large), plan->workspace_bytes);
  EXPECT_EQ(make_cuda_planner(scores - 1)->scratch_bytes(large), 2 * 32 * 4096 * 4)
      << "a number a row of the own kernel";
  AttentionBackward in_any_order = large;
  in_any_order.order = SumOrder::any;
  EXPECT_TRUE(sdpa_plan(in_any_order, 1)) << "no scores are written";
  const AttentionBackward many = call_of({4, 1024, 12, 12, 64}, DType::bf16);
  EXPECT_EQ(sdpa_plan(many, scores)->samples, 4) << "a higher limit is no reason to take more";
  EXPECT_EQ(sdpa_plan(call_of({8, 1024, 25, 25, 64}, DType::bf16), scores)->samples, 4);
}

TEST(CudaScratch, DependsOnShapesOnly) {
  const auto device = make_cuda_planner(kMostScores);
  EXPECT_EQ(device->scratch_bytes(forward_of(call_of({2, 17, 3, 3, 5}, DType::f32))), 0);
  EXPECT_EQ(device->scratch_bytes(forward_of(call_of({2, 17, 3, 3, 256}, DType::f32))), 0);
  const AttentionBackward wide = call_of({2, 17, 3, 3, 257}, DType::bf16);
  EXPECT_THROW(device->scratch_bytes(wide), DeckError);
  EXPECT_THROW(device->scratch_bytes(forward_of(wide)), DeckError);
  auto* anywhere = reinterpret_cast<std::byte*>(4096);
  const View x(anywhere, DType::bf16, {100, 8}), w(anywhere, DType::bf16, {24, 8}),
      y(anywhere, DType::f32, {100, 24}), bias(anywhere, DType::bf16, {24});
  const std::int64_t product = kMatmulWorkspace + kWorkspaceAlignment;
  SumQuantized sum{.code = View(anywhere, DType::u8, {kMostCodeParts, 1, 64})};
  EXPECT_EQ(device->scratch_bytes(sum), 0);
  sum.code = View(anywhere, DType::u8, {kMostCodeParts + 1, 1, 64});
  EXPECT_THROW(device->scratch_bytes(sum), DeckError);
  EXPECT_EQ(device->scratch_bytes(Linear{.x = x, .weight = w, .y = y}), product);
  EXPECT_EQ(device->scratch_bytes(Linear{.x = x, .weight = w, .bias = bias, .y = y}),
            product + 24 * 4);
  EXPECT_EQ(device->scratch_bytes(LinearBackwardWeight{.d_y = y, .x = x, .d_weight = w}), product);
  EXPECT_EQ(
      device->scratch_bytes(LinearBackwardWeight{.d_y = y, .x = x, .d_weight = w, .d_bias = bias}),
      product + 2 * 24 * 4)
      << "100 rows in two chunks";

  const View x8(anywhere, DType::bf16, {96, 48}), w8(anywhere, DType::bf16, {32, 48}),
      y8(anywhere, DType::f32, {96, 32}), bias8(anywhere, DType::bf16, {32});
  const auto operand = [](std::int64_t elements) {
    return round_up(elements, kWorkspaceAlignment) + kFp8Parts * 4 + kWorkspaceAlignment;
  };
  const std::int64_t x_bytes = operand(96 * 48), w_bytes = operand(32 * 48),
                     y_bytes = operand(96 * 32);
  EXPECT_EQ(device->scratch_bytes(
                Linear{.x = x8, .weight = w8, .bias = bias8, .y = y8, .operands = Operands::fp8}),
            product + x_bytes + w_bytes + 32 * 4);
  EXPECT_EQ(device->scratch_bytes(
                LinearBackwardInput{.d_y = y8, .weight = w8, .d_x = x8, .operands = Operands::fp8}),
            product + y_bytes + w_bytes);
  EXPECT_EQ(device->scratch_bytes(LinearBackwardWeight{
                .d_y = y8, .x = x8, .d_weight = w8, .operands = Operands::fp8}),
            product + y_bytes + x_bytes);
}

}  // namespace
}  // namespace tessera::kernels::cuda
