// Gradients of the whole model, embedding to loss, against central differences of its loss.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "kernels/cpu/device.hpp"
#include "support/eager_model.hpp"

namespace tessera::test {
namespace {

using model::ModelConfig;

double mean(const std::vector<float>& losses) {
  double sum = 0;
  for (float x : losses) sum += x;
  return sum / static_cast<double>(losses.size());
}

double length(const std::vector<double>& v) {
  double sum = 0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum);
}

class Differences {
 public:
  explicit Differences(const ModelConfig& config, std::int64_t inner_rows = 0)
      : device_(kernels::make_cpu_device({})),
        model_(config, DType::f32, 3, *device_, test_values(11), inner_rows),
        rotary_(config.position == PositionKind::rope),
        frozen_positions_(config.position == PositionKind::sinusoidal),
        batch_(batch_of(config, 40, 2, 7)),
        gradients_(model_.backward(batch_, 1.0F / static_cast<float>(batch_.targets.size())).flat) {
  }

  /// Compares, for each parameter tensor, the derivative along two directions: the gradient itself
  /// (an element that is wrong changes its length) and the gradient mixed with noise (an element
  /// that should not be zero does not hide).
  void check() {
    for (const auto& tensor : model_.tensors()) {
      SCOPED_TRACE(tensor.name);
      if (frozen_positions_ && tensor.name == "positions.weight") continue;
      const auto n = static_cast<std::size_t>(tensor.elements.count());
      std::vector<double> g(n), mixed(n);
      std::mt19937 random(static_cast<unsigned>(n));
      std::normal_distribution<double> normal;
      for (std::size_t i = 0; i < n; ++i)
        g[i] = gradients_[static_cast<std::size_t>(tensor.elements.begin) + i];
      const double size = length(g);
      ASSERT_TRUE(std::isfinite(size));
      if (tensor.name.ends_with("attention.k.bias") && !rotary_) {
        // A constant added to all keys leaves every softmax as it is, unless it is turned by
        // position.
        EXPECT_LT(size, 1e-5);
        continue;
      }
      ASSERT_GT(size, 1e-3) << "the gradient vanishes: the test would show nothing";
      for (auto& x : g) x /= size;
      for (std::size_t i = 0; i < n; ++i) mixed[i] = normal(random);
      const double noise = length(mixed);
      for (std::size_t i = 0; i < n; ++i) mixed[i] = (g[i] + mixed[i] / noise) / std::sqrt(2.0);
      compare(tensor, g, size, size);
      double expected = 0;
      for (std::size_t i = 0; i < n; ++i) expected += mixed[i] * g[i] * size;
      compare(tensor, mixed, expected, size);
    }
  }

 private:
  double loss_at(const EagerModel::Tensor& tensor, const std::vector<double>& direction,
                 double step) {
    const auto begin = static_cast<std::size_t>(tensor.elements.begin);
    const std::vector<float> before = model_.parameters;
    for (std::size_t i = 0; i < direction.size(); ++i) {
      model_.parameters[begin + i] = static_cast<float>(before[begin + i] + step * direction[i]);
    }
    const double loss = mean(model_.losses(batch_));
    model_.parameters = before;
    return loss;
  }

  void compare(const EagerModel::Tensor& tensor, const std::vector<double>& direction,
               double expected, double size) {
    // Richardson's combination of central differences at h and 2 h, of fourth order. Of the loss
    // of one token, at most some 200 roundings along the longest path (sums of C, F, T and V terms
    // over two layers) each move it by 2^-24 of itself; the combination adds them up to 1.5 / h
    // times. What remains of truncation is a small part of what the combination has corrected.
    constexpr double h = 0.01;
    const auto central = [&](double step) {
      return (loss_at(tensor, direction, step) - loss_at(tensor, direction, -step)) / (2 * step);
    };
    const double d1 = central(h), d2 = central(2 * h), d = (4 * d1 - d2) / 3;
    const double rounding = 200 * 0x1p-24 * mean(model_.losses(batch_)) * 1.5 / h;
    const double tolerance = rounding + 0.25 * std::abs(d - d1);
    EXPECT_NEAR(d, expected, tolerance);
    EXPECT_LT(tolerance, 0.05 * size + rounding) << "the step is too long to show anything";
  }

  std::unique_ptr<kernels::Device> device_;
  EagerModel model_;
  bool rotary_, frozen_positions_;
  TokenBatch batch_;
  std::vector<float> gradients_;
};

TEST(Gradients, Gpt2) { Differences(gpt2_like()).check(); }

// Masks are a function of (seed, site, sample, element), so the differences see fixed ones.
TEST(Gradients, Gpt2UntiedWithDropout) {
  ModelConfig c = gpt2_like();
  c.tied_embeddings = false;
  c.dropout = model::same_dropout(0.2F);
  Differences(c).check();
}

TEST(Gradients, Gpt2WithOneKvHeadAndNoPositions) {
  ModelConfig c = gpt2_like();
  c.kv_heads = 1;
  c.position = PositionKind::none;
  Differences(c).check();
}

/// All experts are chosen: whom a token goes to does not change along the way.
ModelConfig of_all_experts(ModelConfig c) {
  c.experts.routing.choices = c.experts.count;
  c.experts.routing.open_groups = c.experts.routing.groups;
  return c;
}

TEST(Gradients, Llama) { Differences(llama_like()).check(); }

// Groups of rows that do not divide them; the last has fewer.
TEST(Gradients, FeedForwardInGroupsOfRows) {
  Differences(gpt2_like(), 3).check();
  Differences(llama_like(), 5).check();
  Differences(of_all_experts(deepseek_like()), 4).check();
}

TEST(Gradients, LlamaTiedWithDropoutAndBiases) {
  ModelConfig c = llama_like();
  c.tied_embeddings = c.bias = true;
  c.dropout = {.embedding = 0.1F, .attention = 0.2F, .residual = 0.3F};
  Differences(c).check();
}

TEST(Gradients, Mixtral) {
  ModelConfig c = of_all_experts(mixtral_like());
  Differences(c).check();
  c.experts.jitter = 0.9F;
  Differences(c).check();
}

TEST(Gradients, GatesOfTwoLevels) {
  ModelConfig c = mixtral_like();
  c.experts.gates = RouterGates::two_levels;
  c.experts.routing.groups = 2;
  Differences(of_all_experts(c)).check();
}

TEST(Gradients, DeepSeek) { Differences(of_all_experts(deepseek_like())).check(); }

TEST(Gradients, Latents) {
  ModelConfig c = latent_like();
  Differences(c).check();
  c.latent.q = 0;
  c.dropout = model::same_dropout(0.2F);
  Differences(c).check();
}

/// What z adds to the gradient of the last router's matrix, of a mean loss over targets.
std::vector<double> gradient_of_z(const ModelConfig& config) {
  const auto device = kernels::make_cpu_device({});
  EagerModel model(config, DType::f32, 3, *device, test_values(11));
  const TokenBatch batch = batch_of(config, 40, 2, 7);
  const float scale = 1.0F / static_cast<float>(batch.targets.size());
  const std::vector<float> without = model.backward(batch, scale).flat;
  model.router_terms.z = 100;
  const std::vector<float> with = model.backward(batch, scale).flat;
  std::vector<double> all;
  for (const auto& tensor : model.tensors()) {
    if (tensor.name != "block.1.mlp.router.weight") continue;
    for (auto i = tensor.elements.begin; i < tensor.elements.end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      all.push_back(static_cast<double>(with[at]) - without[at]);
    }
  }
  return all;
}

// Terms of routers weigh as much as the targets, however many a sample has.
TEST(Gradients, RouterTermsWeighAsMuchWhereASampleHasOneTarget) {
  ModelConfig pooled = mixtral_like();
  pooled.head = {.pooling = Pooling::mean, .labels = 5};
  const auto of_tokens = gradient_of_z(mixtral_like()), of_pooled = gradient_of_z(pooled);
  ASSERT_EQ(of_tokens.size(), of_pooled.size());
  ASSERT_GT(length(of_tokens), 1);
  for (std::size_t i = 0; i < of_tokens.size(); ++i)
    EXPECT_NEAR(of_tokens[i], of_pooled[i], 1e-4 * length(of_tokens));
}

TEST(Gradients, ExpertsWithoutGate) {
  ModelConfig c = gpt2_like();
  c.bias = false;
  c.experts = {.count = 3, .hidden = 24, .every = 2, .routing = {.choices = 3}};
  Differences(c).check();
}

TEST(Gradients, Qwen) { Differences(qwen_like()).check(); }

TEST(Gradients, Olmo2WithDropout) {
  ModelConfig c = olmo2_like();
  c.dropout = model::same_dropout(0.2F);
  Differences(c).check();
}

// A site has its own rate, and masks that no other site of any layer has.
TEST(DropoutSites, HaveTheirRates) {
  const auto device = kernels::make_cpu_device({});
  model::UnitContext u(*device, {}, DType::f32, {.batch = 1, .sequence = 2});
  ModelConfig c = gpt2_like();
  c.dropout = {.embedding = 0.1F, .attention = 0.2F, .residual = 0.3F};
  EXPECT_EQ(u.dropout(c, model::DropoutSite::embedding).p, 0) << "evaluation";
  u.training = true;
  std::set<std::uint64_t> sites{u.dropout(c, model::DropoutSite::embedding).site};
  EXPECT_EQ(u.dropout(c, model::DropoutSite::embedding).p, 0.1F);
  for (u.layer = 1; u.layer <= 2; ++u.layer) {
    for (const auto& [site, rate] : {std::pair{model::DropoutSite::attention, 0.2F},
                                     {model::DropoutSite::attention_out, 0.3F},
                                     {model::DropoutSite::incoming, 0.3F}}) {
      EXPECT_EQ(u.dropout(c, site).p, rate);
      EXPECT_TRUE(sites.insert(u.dropout(c, site).site).second);
    }
  }
}

TEST(Gradients, GptNeox) { Differences(gpt_neox_like()).check(); }

TEST(Gradients, GptJ) { Differences(gptj_like()).check(); }

TEST(Gradients, OneNormForBothWithNormsOfOutputsAndDropout) {
  ModelConfig c = gptj_like();
  c.norm_placed = NormPlacement::both;
  c.rotary_dim = 0;
  c.dropout = model::same_dropout(0.2F);
  Differences(c).check();
  c.norm_placed = NormPlacement::after;
  Differences(c).check();
}

TEST(Gradients, ParallelBlocksWithNormsOfOutputsAndDropout) {
  ModelConfig c = gpt_neox_like();
  c.norm_placed = NormPlacement::both;
  c.qk_norm = QkNorm::head;
  c.dropout = model::same_dropout(0.2F);
  Differences(c).check();
}

TEST(Gradients, LlamaOfScaledFrequenciesWithAWindow) {
  ModelConfig c = llama_like();
  c.rope_scaling = {.kind = RopeScalingKind::llama3, .factor = 4, .original_positions = 8};
  c.window = 3;
  Differences(c).check();
}

TEST(Gradients, Gemma2) { Differences(gemma2_like()).check(); }

TEST(Gradients, BertWithDropout) {
  ModelConfig c = bert_like();
  c.dropout = model::same_dropout(0.2F);
  Differences(c).check();
}

TEST(Gradients, ClassifierWithDropout) {
  for (const Pooling pooling : {Pooling::mean, Pooling::first, Pooling::last}) {
    ModelConfig c = classifier_like();
    c.activation = ActivationKind::gelu;  // ReLU has kinks
    c.dropout = model::same_dropout(0.2F);
    c.head.pooling = pooling;
    Differences(c).check();
  }
}

TEST(Gradients, ClassesOfTokensWithoutADenseLayer) {
  ModelConfig c = classifier_like();
  c.activation = ActivationKind::gelu;
  c.head = {.labels = 3};
  c.dropout = model::same_dropout(0.2F);
  Differences(c).check();
}

}  // namespace
}  // namespace tessera::test
