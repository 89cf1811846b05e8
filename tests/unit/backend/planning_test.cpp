// What plans know of a back end that is not there.
#include <gtest/gtest.h>

#include "backend/backend.hpp"

namespace tessera::backend {
namespace {

using kernels::AttentionBackward;

/// Heads of Llama 8B; addresses are nobody's.
AttentionBackward llama_8b(std::int64_t tokens) {
  auto* anywhere = reinterpret_cast<std::byte*>(4096);
  const View q(anywhere, DType::bf16, {1, tokens, 32 * 128}),
      k(anywhere, DType::bf16, {1, tokens, 8 * 128});
  return {.q = q,
          .k = k,
          .v = k,
          .out = q,
          .lse = View(anywhere, DType::f32, {1, 32, tokens}),
          .d_out = q,
          .d_q = q,
          .d_k = k,
          .d_v = k,
          .shape = {.heads = 32, .kv_heads = 8, .head_dim = 128, .scale = 1}};
}

TEST(PlanningDevice, GivesAttentionAShareOfTheMemoryThatTheDeckNames) {
  const auto scratch = [](std::int64_t tokens, auto memory) {
    const auto planned = make_planning_device({.kind = deck::Backend::cuda, .memory = memory});
    return planned.device->scratch_bytes(llama_8b(tokens));
  };
  const auto gradients_of_scores = [](std::int64_t tokens) { return 32 * tokens * tokens * 2; };
  for (const std::int64_t tokens : {4096, 8192}) {
    const std::int64_t scores = gradients_of_scores(tokens), own = 32 * tokens * 4;
    EXPECT_GT(scratch(tokens, deck::Bytes{32 * scores}), scores) << tokens;
    EXPECT_EQ(scratch(tokens, deck::Bytes{32 * scores - 1}), own) << tokens;
  }
  EXPECT_GT(scratch(6144, deck::MemoryBudget::automatic), gradients_of_scores(6144));
  EXPECT_EQ(scratch(8192, deck::MemoryBudget::automatic), 32 * 8192 * 4);
}

TEST(PlanningDevice, OfACpuHasTheSameScratchWhateverTheDeckSaysOfMemory) {
  const auto scratch = [](std::int64_t bytes) {
    return make_planning_device({.kind = deck::Backend::cpu, .memory = deck::Bytes{bytes}})
        .device->scratch_bytes(llama_8b(128));
  };
  EXPECT_EQ(scratch(1), scratch(std::int64_t{1} << 50));
}

}  // namespace
}  // namespace tessera::backend
