// What the rest of the program knows of an optimizer.
#include "optim/optimizer.hpp"

#include <gtest/gtest.h>

namespace tessera::optim {
namespace {

TEST(Optimizer, AdamKeepsTwoMoments) {
  const Optimizer o = make_optimizer({.betas = {{0.9, 0.95}}, .eps = 1e-8, .clip_norm = 3});
  ASSERT_EQ(o.state.size(), 2u);
  EXPECT_EQ(o.state[0].name, "adam_m");
  EXPECT_EQ(o.state[1].name, "adam_v");
  EXPECT_EQ(o.clip_norm, 3);
  EXPECT_EQ(bytes_per_element(o), 8);
  EXPECT_EQ(saved_bytes_per_element(o), 8);
}

TEST(Optimizer, LambKeepsTwoMomentsAndAddsUpTwoSumsATensor) {
  const Optimizer o = make_optimizer({.name = deck::OptimizerName::lamb,
                                      .betas = {{0.9, 0.999}},
                                      .eps = 1e-12,
                                      .trust = {{0.5, 2}},
                                      .moments = deck::SumPrecision::bf16});
  ASSERT_EQ(o.state.size(), 2u);
  EXPECT_EQ(o.state[0].name, "lamb_m");
  EXPECT_EQ(o.state[1].name, "lamb_v");
  EXPECT_EQ(bytes_per_element(o), 4);
  EXPECT_EQ(o.words_per_tensor, 2 * kExactSumWords);
}

// Trap 42: what decays is decided by the parameter, whatever flat buffer it lies in.
TEST(Optimizer, OnlyMatricesDecay) {
  for (const deck::OptimizerName name : {deck::OptimizerName::adamw, deck::OptimizerName::adam}) {
    const Optimizer o =
        make_optimizer({.name = name, .betas = {{0.9, 0.95}}, .eps = 1e-8, .weight_decay = 0.25});
    const std::array<View, 2> state{};
    const auto decay = [&](UpdatePart part) {
      return std::get<kernels::OptimizerUpdate>(o.update({.state = state}, part)).settings.decay;
    };
    EXPECT_EQ(decay(UpdatePart::matrices), 0.25F);
    EXPECT_EQ(decay(UpdatePart::vectors), 0);
  }
}

TEST(Optimizer, AdamCorrectsTheBiasOfBothMoments) {
  StepScalars scalars{};
  adam({.beta1 = 0.5, .beta2 = 0.75}).set_scalars(scalars, 3);
  EXPECT_EQ(scalars[static_cast<std::size_t>(kernels::StepScalar::bias_correction1)], 0.875F);
  EXPECT_EQ(scalars[static_cast<std::size_t>(kernels::StepScalar::bias_correction2)],
            1 - 0.421875F);
}

TEST(Optimizer, CountsBytesByWhatIsKeptAndSaved) {
  Optimizer o;
  o.state = {{.name = "a"},
             {.name = "b", .type = DType::bf16, .extent = Extent::shard, .saved = false},
             {.name = "c", .extent = Extent::tensor, .saved = false}};
  EXPECT_EQ(bytes_per_element(o), 6);
  EXPECT_EQ(saved_bytes_per_element(o), 4);
}

}  // namespace
}  // namespace tessera::optim
