// Steps and samples of batches that ramp up, against counting step by step.
#include "optim/timeline.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "core/error.hpp"

namespace tessera::optim {
namespace {

deck::BatchSection batch(std::int64_t global, std::vector<deck::RampEntry> ramp) {
  return {.sequence = 3, .micro = 1, .global = global, .ramp = std::move(ramp)};
}

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
    const Timeline timeline(batch(1 + pick(9), ramp), 50);
    std::int64_t samples = 0;
    for (std::int64_t s = 1; s <= 40; ++s) {
      std::int64_t expected = timeline.global(0);
      for (const auto& entry : ramp) {
        if (entry.step <= s) expected = entry.global;
      }
      ASSERT_EQ(timeline.global(s), expected);
      // The fewest steps that consume so many samples: the ones that this step reaches first.
      for (std::int64_t n = samples + 1; n <= samples + expected; ++n) {
        ASSERT_EQ(timeline.steps_for_samples(n), s) << n << " samples";
      }
      samples += expected;
      ASSERT_EQ(timeline.samples_after(s), samples);
    }
    EXPECT_EQ(timeline.samples_after(0), 0);
    EXPECT_EQ(timeline.steps_for_samples(0), 0);
  }
}

TEST(Timeline, RoundsTokensAndEpochsUp) {
  const Timeline timeline(batch(4, {}), 50);
  EXPECT_EQ(timeline.samples_of_tokens(12), 4);
  EXPECT_EQ(timeline.samples_of_tokens(13), 5);
  EXPECT_EQ(timeline.samples_of_epochs(1), 50);
  EXPECT_EQ(timeline.samples_of_epochs(0.03), 2);
  EXPECT_EQ(timeline.samples_of_epochs(1e300), std::int64_t{1} << 60) << "no run is as long";
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

TEST(Timeline, RefusesEpochsOfUnknownData) {
  EXPECT_THROW(Timeline(batch(4, {}), 0).samples_of_epochs(1), InternalError);
}

}  // namespace
}  // namespace tessera::optim
