// Generation: the cache against a forward without one, and how tokens are drawn.
#include "train/generator.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/device.hpp"
#include "support/eager_model.hpp"

namespace tessera::test {
namespace {

using train::Generator;
using train::sample_token;
using train::SamplingRule;

/// log of the probability that softmax(logits) gives `token`.
double log_probability(std::span<const float> logits, std::int32_t token) {
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x));
  return logits[static_cast<std::size_t>(token)] - std::log(sum);
}

// The loss of each target token, from training's forward over the whole sequence, is what the
// cached logits give it, however the sequence is cut. Some 200 roundings along the longest path.
TEST(Generator, SeesWhatTrainingSees) {
  const auto device = kernels::make_cpu_device({});
  for (auto config : {gpt2_like(), llama_like(), qwen_like(), olmo2_like(), gpt_neox_like(),
                      gptj_like(), gemma2_like(), mixtral_like(), deepseek_like()}) {
    const std::int64_t n = config.context;
    EagerModel training(config, DType::f32, 1, *device, test_values(11));
    const TokenBatch batch = batch_of(config, 3, 1, n);
    const auto losses = training.losses(batch);
    for (const std::vector<std::int64_t>& cuts :
         {std::vector<std::int64_t>(static_cast<std::size_t>(n), 1), {n}, {5, 1, n - 6}}) {
      memory::HostTier tier;
      Generator generator(config, *device, tier, test_values(11));
      EXPECT_EQ(generator.context(), n);
      std::int64_t at = 0;
      for (std::int64_t count : cuts) {
        const auto logits = generator.advance(
            std::span(batch.tokens)
                .subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)));
        at += count;
        EXPECT_EQ(generator.length(), at);
        ASSERT_EQ(logits.size(), static_cast<std::size_t>(config.vocab));
        const auto last = static_cast<std::size_t>(at - 1);
        EXPECT_NEAR(-log_probability(logits, batch.targets[last]), losses[last],
                    200 * 0x1p-24 * std::max(1.0F, losses[last]));
      }
      EXPECT_THROW(generator.advance(std::span(batch.tokens).first(1)), InternalError);
    }
  }
}

// The same of a sample's class, whatever was seen before.
TEST(Generator, ClassifiesAsTrainingDoes) {
  const auto device = kernels::make_cpu_device({});
  const auto config = classifier_like();
  EagerModel training(config, DType::f32, 1, *device, test_values(11));
  memory::HostTier tier;
  Generator generator(config, *device, tier, test_values(11));
  for (const std::int64_t n : {config.context, std::int64_t{1}, std::int64_t{5}}) {
    const TokenBatch batch = batch_of(config, 3, 1, n);
    const float loss = training.losses(batch)[0];
    const auto logits = generator.whole(batch.tokens);
    ASSERT_EQ(std::ssize(logits), config.head.labels);
    EXPECT_NEAR(-log_probability(logits, batch.targets[0]), loss,
                200 * 0x1p-24 * std::max(1.0F, loss));
  }
}

const std::vector<float> kLogits = {0.5F, 2, -1, 1.5F, 2, -30};

TEST(SampleToken, TemperatureZeroTakesTheLikeliestAndTheFirstOfEquals) {
  for (std::int64_t position = 0; position < 20; ++position)
    EXPECT_EQ(sample_token(kLogits, {.temperature = 0}, position), 1);
}

TEST(SampleToken, TopKOfOneIsTheLikeliest) {
  for (std::int64_t position = 0; position < 20; ++position)
    EXPECT_EQ(sample_token(kLogits, {.top_k = 1}, position), 1);
}

/// How often each token was drawn.
std::vector<double> shares(const SamplingRule& rule, int draws) {
  std::vector<double> share(kLogits.size());
  for (int i = 0; i < draws; ++i)
    share[static_cast<std::size_t>(sample_token(kLogits, rule, i))] += 1.0 / draws;
  return share;
}

/// softmax(logits / temperature) over the tokens that are allowed.
std::vector<double> expected(double temperature, const std::vector<std::size_t>& allowed) {
  std::vector<double> p(kLogits.size());
  double sum = 0;
  for (std::size_t i : allowed) sum += p[i] = std::exp(kLogits[i] / temperature);
  for (double& x : p) x /= sum;
  return p;
}

// 20 000 draws: a share's deviation is at most 0.5 / sqrt(20 000) = 0.0036; five of them.
void expect_shares(const SamplingRule& rule, const std::vector<double>& p) {
  const auto share = shares(rule, 20'000);
  for (std::size_t i = 0; i < p.size(); ++i) {
    EXPECT_NEAR(share[i], p[i], p[i] == 0 ? 0 : 0.018) << "token " << i;
  }
}

TEST(SampleToken, DrawsFromTheSoftmax) {
  expect_shares({}, expected(1, {0, 1, 2, 3, 4, 5}));
  expect_shares({.temperature = 2}, expected(2, {0, 1, 2, 3, 4, 5}));
}

TEST(SampleToken, DrawsFromTheKLikeliest) { expect_shares({.top_k = 3}, expected(1, {1, 4, 3})); }

// Softmax gives tokens 1 and 4 0.35 each, 3 0.21: two make 0.69, so 0.75 needs three.
TEST(SampleToken, DrawsFromTheLikeliestThatMakeUpP) {
  expect_shares({.top_p = 0.65}, expected(1, {1, 4}));
  expect_shares({.top_p = 0.75}, expected(1, {1, 4, 3}));
  expect_shares({.top_p = 0}, expected(1, {1}));
}

TEST(SampleToken, SeedAndPositionDecide) {
  int differ = 0;
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(sample_token(kLogits, {.seed = 1}, i), sample_token(kLogits, {.seed = 1}, i));
    differ += sample_token(kLogits, {.seed = 1}, i) != sample_token(kLogits, {.seed = 2}, i);
  }
  EXPECT_GT(differ, 20);
}

// A model that diverged has no likeliest token.
TEST(SampleToken, RefusesLogitsThatAreNotNumbers) {
  std::vector<float> logits(1000);
  for (std::size_t i = 0; i < logits.size(); i += 3) logits[i] = std::nanf("");
  EXPECT_THROW(sample_token(logits, {}, 0), NonFiniteError);
  EXPECT_THROW(sample_token(logits, {.temperature = 0}, 0), NonFiniteError);
}

}  // namespace
}  // namespace tessera::test
