// Generation: the cache against a forward without one, slots beside each other, how tokens are
// drawn, and how completions end.
#include "train/generation/generator.hpp"
#include "train/generation/completions.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kernels/cpu/device.hpp"
#include "support/eager_model.hpp"

namespace tessera::test {
namespace {

using train::Completion;
using train::Completions;
using train::Ending;
using train::Generator;
using train::log_probability;
using train::sample_token;
using train::SamplingRule;

// The loss of each target token, from training's forward over the whole sequence, is what the
// cached logits give it, however the sequence is cut. Some 200 roundings along the longest path.
TEST(Generator, SeesWhatTrainingSees) {
  const auto device = kernels::make_cpu_device({});
  for (auto config : {gpt2_like(), llama_like(), qwen_like(), olmo2_like(), gpt_neox_like(),
                      gptj_like(), gemma2_like(), mixtral_like(), balanced_like(), latent_like()}) {
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

/// What each slot has seen, and the logits after it, of sequences that begin one after another.
using SlotLogits = std::vector<std::vector<float>>;

/// Of the sequence, its logits after the first `begin` tokens and after each that follows, in this
/// slot; `beside`: in the other slots others go on, and begin anew.
SlotLogits in_slot(Generator& generator, std::span<const std::int32_t> tokens, std::size_t begin,
                   std::int64_t slot, std::span<const std::int32_t> beside) {
  SlotLogits all;
  const auto keep = [&](std::span<const float> logits) {
    all.emplace_back(logits.begin(), logits.end());
  };
  for (std::int64_t other = 0; other < generator.slots(); ++other) generator.forget(other);
  const auto begin_beside = [&](std::size_t count) {
    for (std::int64_t other = 0; other < generator.slots() && !beside.empty(); ++other) {
      if (other == slot) continue;
      generator.forget(other);
      generator.advance(beside.subspan(0, count + static_cast<std::size_t>(other)), other);
    }
  };
  begin_beside(2);
  keep(generator.advance(tokens.first(begin), slot));
  for (std::size_t t = begin; t < tokens.size(); ++t) {
    if (t == begin + 2) begin_beside(1);
    std::vector<std::int32_t> next(static_cast<std::size_t>(generator.slots()),
                                   beside.empty() ? -1 : beside[t]);
    next[static_cast<std::size_t>(slot)] = tokens[t];
    const auto logits = generator.advance_each(next);
    const std::size_t vocab = logits.size() / next.size();
    keep(logits.subspan(static_cast<std::size_t>(slot) * vocab, vocab));
  }
  return all;
}

// To the bit, in whatever slot and beside whatever; and what training sees. Experts' products have
// rows of all slots' tokens, so only the latter is said of them.
TEST(Generator, SlotsDoNotSeeEachOther) {
  const auto device = kernels::make_cpu_device({.few_rows = true});
  for (auto config : {gpt2_like(), llama_like(), qwen_like(), gemma2_like(), gpt_neox_like(),
                      mixtral_like(), latent_like()}) {
    const bool experts = config.experts.count > 0;
    const std::int64_t n = config.context;
    EagerModel training(config, DType::f32, 1, *device, test_values(11));
    const TokenBatch batch = batch_of(config, 3, 1, n), beside = batch_of(config, 4, 1, n);
    const auto losses = training.losses(batch);
    memory::HostTier tier;
    Generator generator(config, *device, tier, test_values(11), {.slots = 3});
    const SlotLogits alone = in_slot(generator, batch.tokens, 3, 0, {});
    for (std::size_t i = 0; i < alone.size(); ++i) {
      EXPECT_NEAR(-log_probability(alone[i], batch.targets[i + 2]), losses[i + 2],
                  200 * 0x1p-24 * std::max(1.0F, losses[i + 2]));
    }
    if (experts) continue;
    for (const std::int64_t slot : {0, 1, 2}) {
      EXPECT_EQ(in_slot(generator, batch.tokens, 3, slot, beside.tokens), alone);
      EXPECT_EQ(in_slot(generator, batch.tokens, 3, slot, {}), alone);
    }
  }
}

// Latents, and positions of keys, are all that a cache keeps of tokens, unless adapters are beside
// what makes keys of them, or the device's attention takes no heads as wide as they are. All three
// see the same, with queries of latents or without.
TEST(Generator, KeepsLatentsInThePlaceOfKeysAndValues) {
  const auto device = kernels::make_cpu_device({});
  for (const std::int64_t of_queries : {0, 12}) {
    model::ModelConfig config = latent_like(), adapted = config;
    config.latent.q = adapted.latent.q = of_queries;
    adapted.adapter = {.rank = 2, .scale = 3, .targets = {"*.attention.k.weight"}};
    const std::int64_t n = config.context, of_heads = config.heads * (10 + 6), latents = 8 + 4;
    const train::GeneratorOptions narrow{.slots = 2, .most_head_dim = latents - 1},
        wide{.slots = 2, .most_head_dim = latents};
    const auto cached = [&](const model::ModelConfig& of, const train::GeneratorOptions& options) {
      return train::generator_bytes(of, options).cache / (2 * n * config.layers * 4);
    };
    EXPECT_EQ(cached(config, wide), latents);
    EXPECT_EQ(cached(config, narrow), of_heads);
    EXPECT_EQ(cached(adapted, wide), of_heads);
    const TokenBatch batch = batch_of(config, 3, 1, n);
    memory::HostTier tier;
    Generator of_latents(config, *device, tier, test_values(11), wide),
        of_keys(config, *device, tier, test_values(11), narrow);
    for (const std::int64_t cut : {1, 5}) {
      of_latents.forget(1), of_keys.forget(1);
      for (std::int64_t at = 0; at < n; at += cut) {
        const auto next = std::span(batch.tokens)
                              .subspan(static_cast<std::size_t>(at),
                                       static_cast<std::size_t>(std::min(cut, n - at)));
        const auto got = of_latents.advance(next, 1);
        const std::vector<float> logits(got.begin(), got.end());
        const auto want = of_keys.advance(next, 1);
        float most = 0;
        for (const float x : want) most = std::max(most, std::abs(x));
        for (std::size_t i = 0; i < want.size(); ++i)
          ASSERT_NEAR(logits[i], want[i], 200 * 0x1p-24 * std::max(1.0F, most));
      }
    }
  }
}

// In 16 bits a whole prompt gets training's forward, of which only the last row of the head's
// product has another shape: its sum in f32, with at most C roundings, is rounded to 8 bits once.
TEST(Generator, ComputesInSixteenBitsAsTrainingDoes) {
  const auto device = kernels::make_cpu_device({});
  for (auto config : {gpt2_like(), llama_like()}) {
    EagerModel training(config, DType::bf16, 1, *device, test_values(11));
    const TokenBatch batch = batch_of(config, 3, 1, config.context);
    const float loss = training.losses(batch).back();
    memory::HostTier tier;
    Generator generator(config, *device, tier, test_values(11), {.type = DType::bf16});
    const auto logits = generator.advance(batch.tokens);
    float most = 0;
    for (const float x : logits) most = std::max(most, std::abs(x));
    EXPECT_NEAR(-log_probability(logits, batch.targets.back()), loss, 2 * 0x1p-8 * most);
  }
}

/// Texts of tokens: id 7 is "<7>".
std::string_view text_of_id(std::int32_t id) {
  static std::map<std::int32_t, std::string> texts;
  return texts.try_emplace(id, fmt::format("<{}>", id)).first->second;
}

/// What becomes of prompts of one, two, ... tokens, of which `together` go on at once.
std::map<std::uint64_t, Completion> complete(Generator& generator, const SamplingRule& rule,
                                             const train::StopRule& stop, std::uint64_t prompts,
                                             std::int64_t together) {
  std::map<std::uint64_t, Completion> all;
  Completions completions(generator, rule, stop, true);
  completions.done = [&](Completion&& made) { all.emplace(made.number, std::move(made)); };
  for (std::uint64_t next = 0; next < prompts || !completions.idle();) {
    while (next < prompts && generator.slots() - completions.room().slots < together) {
      std::vector<std::int32_t> prompt;
      for (std::uint64_t i = 0; i <= next % 4; ++i)
        prompt.push_back(static_cast<std::int32_t>(3 * next + 5 * i) % 20);
      const Completions::Prompt added{.number = next++, .tokens = prompt};
      completions.add(std::span(&added, 1));
    }
    if (!completions.idle()) completions.step();
  }
  return all;
}

class CompletionsTest : public testing::Test {
 protected:
  CompletionsTest()
      : config_(gpt2_like()),
        device_(kernels::make_cpu_device({.few_rows = true})),
        generator_(config_, *device_, tier_, test_values(11), {.slots = 3}) {
    stop_.most = 6;
    stop_.text_of = text_of_id;
  }

  model::ModelConfig config_;
  std::unique_ptr<kernels::Device> device_;
  memory::HostTier tier_;
  Generator generator_;
  train::StopRule stop_;
};

TEST_F(CompletionsTest, DoNotDependOnWhatIsBesideThem) {
  stop_.ends = {2, 5, 9};  // some end early
  const auto alone = complete(generator_, {}, stop_, 20, 1);
  const auto together = complete(generator_, {}, stop_, 20, 3);
  ASSERT_EQ(alone.size(), 20U);
  ASSERT_EQ(together.size(), 20U);
  int early = 0;
  for (const auto& [number, a] : alone) {
    const Completion& b = together.at(number);
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.text, b.text);
    EXPECT_EQ(a.log_p, b.log_p);
    EXPECT_EQ(a.ending, b.ending);
    early += a.ending == Ending::end;
    EXPECT_EQ(a.ending == Ending::end, std::ranges::count(stop_.ends, a.tokens.back()) == 1);
    EXPECT_EQ(a.text.empty(), a.ending == Ending::end && a.tokens.size() == 1);
  }
  EXPECT_GT(early, 0);
  EXPECT_LT(early, 20);
}

TEST_F(CompletionsTest, SayHowLikelyEachTokenWas) {
  const auto made = complete(generator_, {.temperature = 0.5}, stop_, 4, 3);
  for (const auto& [number, completion] : made) {
    ASSERT_EQ(completion.log_p.size(), completion.tokens.size());
    generator_.forget();
    std::vector<std::int32_t> next;
    for (std::uint64_t i = 0; i <= number % 4; ++i)
      next.push_back(static_cast<std::int32_t>(3 * number + 5 * i) % 20);
    for (std::size_t t = 0; t < completion.tokens.size(); ++t) {
      // Products of one row have other bits than those of three: some 200 roundings, as above.
      EXPECT_NEAR(completion.log_p[t],
                  log_probability(generator_.advance(next), completion.tokens[t]),
                  200 * 0x1p-24 * std::max(1.0, -completion.log_p[t]));
      next.assign(1, completion.tokens[t]);
    }
  }
}

TEST_F(CompletionsTest, EndAtATextWhereverTokensDivideIt) {
  const auto whole = complete(generator_, {}, stop_, 1, 1).at(0);
  EXPECT_EQ(whole.ending, Ending::length);
  ASSERT_EQ(whole.tokens.size(), 6U);
  const std::size_t third = whole.text.find('<', whole.text.find('<', 1) + 1);
  for (const std::string& text : {whole.text.substr(third, 2), whole.text.substr(third - 2, 5)}) {
    train::StopRule stop = stop_;
    stop.texts = {"nowhere", text};
    const auto made = complete(generator_, {}, stop, 1, 1).at(0);
    EXPECT_EQ(made.ending, Ending::stop);
    EXPECT_EQ(made.text, whole.text.substr(0, whole.text.find(text)));
    EXPECT_LT(made.tokens.size(), 6U);
  }
}

// The last token that is drawn need not be seen.
TEST_F(CompletionsTest, EndWhereTheContextDoes) {
  stop_.most = 1000;
  for (const auto& [number, made] : complete(generator_, {}, stop_, 4, 3)) {
    EXPECT_EQ(made.ending, Ending::length);
    EXPECT_EQ(std::ssize(made.tokens),
              config_.context - static_cast<std::int64_t>(number % 4) - 1 + 1);
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
    EXPECT_EQ(sample_token(kLogits, {.temperature = 0}, {.position = position}), 1);
}

TEST(SampleToken, TopKOfOneIsTheLikeliest) {
  for (std::int64_t position = 0; position < 20; ++position)
    EXPECT_EQ(sample_token(kLogits, {.top_k = 1}, {.position = position}), 1);
}

TEST(LogProbability, IsThatOfTheSoftmax) {
  for (std::int32_t id = 0; id < 6; ++id) {
    double sum = 0;
    for (const float x : kLogits) sum += std::exp(static_cast<double>(x));
    EXPECT_DOUBLE_EQ(log_probability(kLogits, id),
                     kLogits[static_cast<std::size_t>(id)] - std::log(sum));
  }
}

/// How often each token was drawn.
std::vector<double> shares(const SamplingRule& rule, int draws,
                           const std::vector<std::int32_t>& before) {
  std::vector<double> share(kLogits.size());
  for (int i = 0; i < draws; ++i) {
    const train::Draw draw{.sequence = static_cast<std::uint64_t>(i % 7), .position = i / 7};
    share[static_cast<std::size_t>(sample_token(kLogits, rule, draw, before))] += 1.0 / draws;
  }
  return share;
}

/// softmax(logits / temperature) over the tokens that are allowed.
std::vector<double> expected(double temperature, const std::vector<std::size_t>& allowed,
                             const std::vector<float>& logits = kLogits) {
  std::vector<double> p(kLogits.size());
  double sum = 0;
  for (std::size_t i : allowed) sum += p[i] = std::exp(logits[i] / temperature);
  for (double& x : p) x /= sum;
  return p;
}

// 20 000 draws: a share's deviation is at most 0.5 / sqrt(20 000) = 0.0036; five of them.
void expect_shares(const SamplingRule& rule, const std::vector<double>& p,
                   const std::vector<std::int32_t>& before = {}) {
  const auto share = shares(rule, 20'000, before);
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

// Of the six, relative to the likeliest: 0.22, 1, 0.05, 0.61, 1, 0.
TEST(SampleToken, DrawsFromWhatIsNotFarBelowTheLikeliest) {
  expect_shares({.min_p = 0.5}, expected(1, {1, 3, 4}));
  expect_shares({.min_p = 0.1}, expected(1, {0, 1, 3, 4}));
  expect_shares({.temperature = 2, .min_p = 0.5}, expected(2, {1, 3, 4}));
  expect_shares({.min_p = 1}, expected(1, {1, 4}));
}

TEST(SampleToken, EachRuleLimitsWhatTheOneBeforeLeaves) {
  expect_shares({.top_k = 3, .top_p = 0.75}, expected(1, {1, 4}));  // 0.38 each of three
  expect_shares({.top_k = 4, .min_p = 0.5}, expected(1, {1, 3, 4}));
}

TEST(SampleToken, PenalisesWhatWasThereBeforeOnce) {
  const std::vector<float> halved = {0.5F, 1, -2, 1.5F, 2, -30};
  expect_shares({.repetition_penalty = 2}, expected(1, {0, 1, 2, 3, 4, 5}, halved), {2, 1, 1, 2});
  EXPECT_EQ(sample_token(kLogits, {.temperature = 0, .repetition_penalty = 2}, {}, {{1, 4}}), 3);
}

TEST(SampleToken, SeedSequenceAndPositionDecide) {
  int of_seed = 0, of_sequence = 0;
  for (std::int64_t i = 0; i < 100; ++i) {
    const train::Draw draw{.sequence = 5, .position = i};
    const std::int32_t id = sample_token(kLogits, {.seed = 1}, draw);
    EXPECT_EQ(sample_token(kLogits, {.seed = 1}, draw), id);
    of_seed += sample_token(kLogits, {.seed = 2}, draw) != id;
    of_sequence += sample_token(kLogits, {.seed = 1}, {.sequence = 6, .position = i}) != id;
  }
  EXPECT_GT(of_seed, 20);
  EXPECT_GT(of_sequence, 20);
}

// A model that diverged has no likeliest token.
TEST(SampleToken, RefusesLogitsThatAreNotNumbers) {
  std::vector<float> logits(1000);
  for (std::size_t i = 0; i < logits.size(); i += 3) logits[i] = std::nanf("");
  EXPECT_THROW(sample_token(logits, {}, {}), NonFiniteError);
  EXPECT_THROW(sample_token(logits, {.temperature = 0}, {}), NonFiniteError);
  logits.assign(1000, 1);
  logits[7] = INFINITY;
  EXPECT_THROW(sample_token(logits, {}, {}), NonFiniteError);
}

}  // namespace
}  // namespace tessera::test
