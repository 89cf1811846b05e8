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
TEST(Optimizer, CountsWhatEachRankHasWhole) {
  const Optimizer adam = onebit_adam(), lamb = onebit_lamb();
  EXPECT_EQ(bytes_per_element(adam), 8);
  EXPECT_EQ(whole_bytes_per_element(adam), 4);
  EXPECT_EQ(bytes_per_element(lamb), 12) << "and a second moment that goes on";
  EXPECT_EQ(saved_bytes_per_element(lamb), 12) << "factors of tensors are of no element";
  EXPECT_EQ(whole_bytes_per_element(optim::adam()), 0);
}

TEST(Optimizer, OnlyMatricesDecay) {
  for (const auto& [name, word] : EnumWords<deck::OptimizerName>::table) {
    const Optimizer o = make_optimizer({.name = name,
                                        .betas = {{0.9, 0.95}},
                                        .eps = 1e-8,
                                        .trust = {{0, 1}},
                                        .momentum = 0.9,
                                        .nesterov = false,
                                        .newton_schulz = 5,
                                        .attention = deck::WholeAttention::projections,
                                        .compress_after = 10,
                                        .beta3 = 0.9,
                                        .r_min = 0.5,
                                        .r_max = 4,
                                        .r_threshold = 0.1,
                                        .weight_decay = 0.25});
    const std::vector<View> state(o.state.size());
    const auto decay = [&](bool is_matrix) {
      const kernels::KernelCall call =
          o.update({.state = state},
                   o.terms_of("x", is_matrix ? ParameterKind::matrix : ParameterKind::vector));
      return std::get<kernels::OptimizerUpdate>(call).settings.decay;
    };
    EXPECT_EQ(decay(true), 0.25F) << word;
    EXPECT_EQ(decay(false), 0) << word;
  }
}

TEST(Optimizer, MuonIsOfHiddenMatrices) {
  const Optimizer o = muon();
  EXPECT_TRUE(o.terms_of("x", ParameterKind::hidden_matrix).orthogonal);
  EXPECT_FALSE(o.terms_of("x", ParameterKind::matrix).orthogonal);
  EXPECT_FALSE(o.terms_of("x", ParameterKind::vector).orthogonal);
  EXPECT_FALSE(adam().terms_of("x", ParameterKind::hidden_matrix).orthogonal);
  // As large as AdamW's: 0.2 a weight on average, where an orthogonal matrix has 1 / sqrt(large).
  EXPECT_DOUBLE_EQ(orthogonal_scale(16, 64), 1.6);
  EXPECT_DOUBLE_EQ(orthogonal_scale(64, 16), 1.6);
}

TEST(Optimizer, GroupsHaveTermsOfTheirOwn) {
  const Optimizer o = make_optimizer({.betas = {{0.9, 0.95}},
                                      .eps = 1e-8,
                                      .weight_decay = 0.25,
                                      .groups = {{.match = "block.*.gain", .lr_factor = 0.5},
                                                 {.match = "token*", .weight_decay = 0.125},
                                                 {.match = "*.bias", .weight_decay = 0.0625}}});
  EXPECT_EQ(o.terms_of("block.3.gain", ParameterKind::matrix), (UpdateTerms{0.5, 0.25}));
  EXPECT_EQ(o.terms_of("token_embedding", ParameterKind::matrix), (UpdateTerms{1, 0.125}));
  EXPECT_EQ(o.terms_of("block.1.out.bias", ParameterKind::vector), (UpdateTerms{1, 0.0625}));
  EXPECT_EQ(o.terms_of("block.1.out.weight", ParameterKind::matrix), (UpdateTerms{1, 0.25}));
  const std::vector<View> state(2);
  const auto call = o.update({.state = state}, o.terms_of("block.3.gain", ParameterKind::matrix));
  EXPECT_EQ(std::get<kernels::OptimizerUpdate>(call).settings.lr_factor, 0.5F);
}

TEST(Optimizer, MatchesNamesByPatterns) {
  const auto matches_of = [](const char* pattern, const char* name) {
    return matches({.match = pattern}, name);
  };
  for (const char* pattern : {"block.3.q.weight", "*", "block*weight", "*.q.*", "block.?.q.weight",
                              "*k*.*w*t", "block.3.q.weight**"})
    EXPECT_TRUE(matches_of(pattern, "block.3.q.weight")) << pattern;
  for (const char* pattern : {"", "block", "*.k.*", "?.q.weight", "block.3.q.weight?", "[b]*"})
    EXPECT_FALSE(matches_of(pattern, "block.3.q.weight")) << pattern;
  const std::string stars = "*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b", name(4000, 'a');
  EXPECT_FALSE(matches({.match = stars}, name)) << "in no time that grows with each star";
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
