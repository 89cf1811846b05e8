// Steps, samples and tokens of batches and sequences that grow, against counting step by step.
#include "optim/timeline.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace tessera::optim {
namespace {

deck::BatchSection batch(std::int64_t global, std::vector<deck::RampEntry> ramp) {
  return {.sequence = 3, .micro = 1, .global = global, .ramp = std::move(ramp)};
}

constexpr Amount samples(std::int64_t count) { return {count, Amount::Of::samples}; }
constexpr Amount tokens(std::int64_t count) { return {count, Amount::Of::tokens}; }

TEST(Timeline, EqualsCountingStepByStep) {
  std::mt19937 random(1);
  const auto pick = [&](int n) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(n));
  };
  for (int round = 0; round < 200; ++round) {
    std::vector<deck::RampEntry> ramp;
    std::int64_t step = pick(2);  // an entry may start at step 1
    for (std::int64_t n = pick(4); n > 0; --n) {
      step += 1 + pick(6);
      ramp.push_back({.step = step, .global = 1 + pick(9)});
    }
    deck::BatchSection b = batch(1 + pick(9), ramp);
    step = 0;
    for (std::int64_t n = pick(4); n > 0; --n) {
      b.curriculum.table.push_back({.step = step, .length = 1 + pick(3)});
      step += 1 + pick(6);
    }
    const Timeline timeline(b, 50);
    std::int64_t have_samples = 0, have_tokens = 0;
    for (std::int64_t s = 1; s <= 40; ++s) {
      std::int64_t global = b.global, length = 3;
      for (const auto& entry : ramp) {
        if (entry.step <= s) global = entry.global;
      }
      for (const auto& entry : b.curriculum.table) {
        if (entry.step <= s) length = entry.length;
      }
      ASSERT_EQ(timeline.global(s), global);
      ASSERT_EQ(timeline.sequence(s), length);
      // The fewest steps that consume so much: the ones that this step reaches first.
      for (std::int64_t n = have_samples + 1; n <= have_samples + global; ++n)
        ASSERT_EQ(timeline.steps_for(samples(n)), s) << n << " samples";
      for (std::int64_t n = have_tokens + 1; n <= have_tokens + global * length; ++n)
        ASSERT_EQ(timeline.steps_for(tokens(n)), s) << n << " tokens";
      have_samples += global;
      have_tokens += global * length;
      ASSERT_EQ(timeline.samples_after(s), have_samples);
      ASSERT_EQ(timeline.tokens_after(s), have_tokens);
    }
    EXPECT_EQ(timeline.samples_after(0), 0);
    EXPECT_EQ(timeline.steps_for(samples(0)), 0);
  }
}

TEST(Timeline, GoesOnFromWhatStepsOfOtherSizesConsumed) {
  deck::BatchSection b = batch(4, {{.step = 11, .global = 8}});
  b.curriculum.table = {{.step = 0, .length = 1}, {.step = 9, .length = 3}};
  // From step 5 on: four steps of 4 x 1 to step 8, two of 4 x 3, then 8 x 3 each.
  const RunPosition at{.step = 4, .samples = 100, .tokens = 1000};
  const Timeline timeline(b, 50);
  EXPECT_EQ(timeline.steps_for(tokens(1000), at), 4);
  EXPECT_EQ(timeline.steps_for(tokens(1016), at), 8);
  EXPECT_EQ(timeline.steps_for(tokens(1040), at), 10);
  EXPECT_EQ(timeline.steps_for(tokens(1041), at), 11);
  EXPECT_EQ(timeline.steps_for(samples(124), at), 10);
  EXPECT_EQ(timeline.steps_for(samples(133), at), 12);
}

TEST(Timeline, AnEpochIsItsSequencesOrCutAnewItsTokens) {
  deck::BatchSection b = batch(4, {});
  const auto epoch = [&](double count) {
    const Amount amount = Timeline(b, 50).of_epochs(count);
    return std::pair(amount.count, amount.of);
  };
  EXPECT_EQ(epoch(1), std::pair(std::int64_t{50}, Amount::Of::samples));
  EXPECT_EQ(epoch(0.03), std::pair(std::int64_t{2}, Amount::Of::samples));
  EXPECT_EQ(epoch(1e300).first, std::int64_t{1} << 60) << "no run is as long";
  b.curriculum.table = {{.step = 0, .length = 1}};
  EXPECT_EQ(epoch(1).second, Amount::Of::samples);
  b.curriculum.cut = deck::Cut::anew;
  EXPECT_EQ(epoch(1), std::pair(std::int64_t{150}, Amount::Of::tokens));
}

TEST(Timeline, TheFirstLimitEndsTheRun) {
  const Timeline timeline(batch(4, {}), 50);
  deck::RunSection run;
  EXPECT_EQ(timeline.run_steps(run), std::numeric_limits<std::int64_t>::max());
  run.epochs = 2;  // 25 steps
  EXPECT_EQ(timeline.run_steps(run), 25);
  run.tokens = 120;  // 10 steps
  EXPECT_EQ(timeline.run_steps(run), 10);
  run.steps = 7;
  EXPECT_EQ(timeline.run_steps(run), 7);
}

TEST(Timeline, ScalesTheRateToTheLastBatchOfTheRamp) {
  deck::BatchSection b = batch(2, {{.step = 3, .global = 8}, {.step = 5, .global = 32}});
  const auto scales = [&](deck::LrScaling scaling) {
    b.lr_scaling = scaling;
    const Timeline timeline(b, 0);
    std::vector<double> all;
    for (std::int64_t step = 1; step <= 6; ++step) all.push_back(timeline.lr_scale(step));
    return all;
  };
  using Scales = std::vector<double>;
  EXPECT_EQ(scales(deck::LrScaling::none), Scales(6, 1.0));
  EXPECT_EQ(scales(deck::LrScaling::linear), (Scales{0.0625, 0.0625, 0.25, 0.25, 1, 1}));
  EXPECT_EQ(scales(deck::LrScaling::sqrt), (Scales{0.25, 0.25, 0.5, 0.5, 1, 1}));
  b.ramp = {};
  EXPECT_EQ(scales(deck::LrScaling::linear), Scales(6, 1.0));
}

TEST(Timeline, ScalesTheRateToTheTargetsOfATokenBudget) {
  deck::BatchSection b = batch(2, {{.step = 3, .global = 8}});
  b.sequence = 4;
  b.lr_scaling = deck::LrScaling::linear;
  EXPECT_EQ(Timeline(b, 0).lr_scale_of_targets(1, 1), 1) << "sequences are all alike";
  b.token_budget = b.sequence;
  const std::int64_t tokens = 2 * b.sequence;
  for (const auto& [scaling, quarter] : {std::pair{deck::LrScaling::none, 1.0},
                                         {deck::LrScaling::linear, 0.25},
                                         {deck::LrScaling::sqrt, 0.5}}) {
    b.lr_scaling = scaling;
    const Timeline timeline(b, 0);
    EXPECT_EQ(timeline.lr_scale_of_targets(1, tokens), 1);
    EXPECT_EQ(timeline.lr_scale_of_targets(1, tokens / 4), quarter);
    EXPECT_EQ(timeline.lr_scale_of_targets(3, tokens), quarter) << "of the ramp's last batch";
  }
}

TEST(Timeline, RefusesEpochsOfUnknownData) {
  EXPECT_THROW(Timeline(batch(4, {}), 0).of_epochs(1), InternalError);
}

}  // namespace
}  // namespace tessera::optim
