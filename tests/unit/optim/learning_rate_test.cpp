// Schedules against their closed forms.
#include "optim/learning_rate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

namespace tessera::optim {
namespace {

using deck::ScheduleKind;
using deck::ScheduleSection;

constexpr double kLr = 3e-3, kMin = 2e-4;

ScheduleSection schedule(ScheduleKind kind, std::int64_t warmup) {
  ScheduleSection s;
  s.kind = kind;
  s.warmup_steps = warmup;
  s.min_lr = kMin;
  return s;
}

deck::BatchSection batch(std::int64_t global, std::vector<deck::RampEntry> ramp = {}) {
  return {.sequence = 10, .micro = 1, .global = global, .ramp = std::move(ramp)};
}

const Timeline timeline(batch(4), 100);

double close(double x) { return 1e-15 * std::abs(x) + 1e-18; }

TEST(LearningRate, WarmsUpLinearlyFromTheStart) {
  for (auto kind : {ScheduleKind::constant, ScheduleKind::linear, ScheduleKind::cosine,
                    ScheduleKind::wsd, ScheduleKind::step, ScheduleKind::inverse_sqrt}) {
    ScheduleSection s = schedule(kind, 8);
    s.warmup_start_lr = 1e-4;
    const LearningRate rate(s, kLr, timeline, 100);
    for (int u = 1; u <= 8; ++u)
      EXPECT_NEAR(rate.at(u), 1e-4 + (kLr - 1e-4) * u / 8, close(kLr)) << enum_word(kind) << u;
  }
}

TEST(LearningRate, WarmsUpLogarithmically) {
  ScheduleSection s = schedule(ScheduleKind::constant, 10);
  s.warmup = deck::Warmup::log;
  s.warmup_start_lr = 1e-4;
  const LearningRate rate(s, kLr, timeline, 100);
  EXPECT_EQ(rate.at(1), 1e-4);
  for (int u = 2; u <= 10; ++u)
    EXPECT_NEAR(rate.at(u), 1e-4 + (kLr - 1e-4) * std::log(u) / std::log(10), close(kLr));
  EXPECT_EQ(rate.at(11), kLr);
}

TEST(LearningRate, ALogarithmicWarmUpOfOneUpdateHasNoEffect) {  // ln 1 is no divisor
  ScheduleSection s = schedule(ScheduleKind::constant, 1);
  s.warmup = deck::Warmup::log;
  EXPECT_EQ(LearningRate(s, kLr, timeline, 10).at(1), kLr);
}

TEST(LearningRate, WithoutWarmUpStartsAtItsRate) {
  const LearningRate rate(schedule(ScheduleKind::constant, 0), kLr, timeline, 10);
  EXPECT_EQ(rate.at(1), kLr);
  EXPECT_EQ(rate.at(1'000'000), kLr);
}

TEST(LearningRate, Linear) {
  const LearningRate rate(schedule(ScheduleKind::linear, 10), kLr, timeline, 110);
  for (int u = 10; u <= 110; ++u)
    EXPECT_NEAR(rate.at(u), kLr - (kLr - kMin) * (u - 10) / 100, close(kLr));
  EXPECT_NEAR(rate.at(500), kMin, close(kLr));
}

TEST(LearningRate, Cosine) {
  const LearningRate rate(schedule(ScheduleKind::cosine, 10), kLr, timeline, 110);
  for (int u = 10; u <= 110; ++u) {
    const double expected =
        kMin + (kLr - kMin) * (1 + std::cos(std::numbers::pi * (u - 10) / 100)) / 2;
    EXPECT_NEAR(rate.at(u), expected, close(kLr));
  }
  EXPECT_EQ(rate.at(111), kMin);
}

TEST(LearningRate, WarmUpStableDecay) {
  ScheduleSection s = schedule(ScheduleKind::wsd, 10);
  s.decay_steps = 20;
  const LearningRate rate(s, kLr, timeline, 100);
  for (int u = 10; u <= 80; ++u) EXPECT_EQ(rate.at(u), kLr);
  for (int u = 81; u <= 100; ++u)
    EXPECT_NEAR(rate.at(u), kLr - (kLr - kMin) * (u - 80) / 20, close(kLr));
}

/// The rate of each update by torch.optim.lr_scheduler.StepLR, whose step() is called after each
/// `size` updates that follow the warm-up: here as the recursion that its documentation states.
std::vector<double> step_lr(int warmup, int size, double gamma, int updates) {
  std::vector<double> rates;
  double rate = kLr;
  for (int u = 1; u <= updates; ++u) {
    rates.push_back(std::max(kMin, rate));
    if (u > warmup && (u - warmup) % size == 0) rate *= gamma;
  }
  return rates;
}

TEST(LearningRate, StepsAreThoseOfStepLr) {
  for (const int warmup : {0, 5}) {
    ScheduleSection s = schedule(ScheduleKind::step, warmup);
    s.step_size = 10;
    s.gamma = 0.5;
    const LearningRate rate(s, kLr, timeline, 1000);
    const auto expected = step_lr(warmup, 10, s.gamma, 100);
    for (int u = std::max(1, warmup); u <= 100; ++u)
      EXPECT_NEAR(rate.at(u), expected[static_cast<std::size_t>(u - 1)], close(kLr)) << u;
  }
}

// 25 steps of 4 sequences are an epoch of 100; 24 and a part one of 97.
TEST(LearningRate, StepsInEpochs) {
  for (const auto& [sequences, size] : {std::pair{100, 25}, {97, 0}}) {
    ScheduleSection s = schedule(ScheduleKind::step, 0);
    s.step_epochs = 1;
    s.gamma = 0.6;
    s.min_lr = 0;
    const LearningRate rate(s, kLr, Timeline(batch(4), sequences), 1000);
    int passes = 0;  // over the data, completed by the steps before
    for (int u = 1; u <= 200; ++u) {
      while ((passes + 1) * sequences <= (u - 1) * 4) ++passes;
      EXPECT_NEAR(rate.at(u), kLr * std::pow(0.6, passes), close(kLr)) << u;
      if (size > 0) {
        EXPECT_EQ(passes, (u - 1) / size);
      }
    }
  }
}

// Two epochs of 50 sequences each: from update 3 on, after the warm-up's 20 sequences, the batch
// is 20.
TEST(LearningRate, StepsInEpochsOfABatchThatGrows) {
  ScheduleSection s = schedule(ScheduleKind::step, 2);
  s.step_epochs = 2;
  s.gamma = 0.5;
  s.min_lr = 0;
  const LearningRate rate(s, kLr, Timeline(batch(10, {{.step = 3, .global = 20}}), 50), 100);
  EXPECT_EQ(rate.at(1), kLr / 2);
  for (int u = 2; u <= 7; ++u) EXPECT_EQ(rate.at(u), kLr) << u;  // 3 .. 7 take 100 sequences
  for (int u = 8; u <= 12; ++u) EXPECT_EQ(rate.at(u), kLr / 2) << u;
  EXPECT_EQ(rate.at(13), kLr / 4);
}

// d_model^-0.5 min(step^-0.5, step warmup^-1.5), divided by its peak, d_model^-0.5 warmup^-0.5.
TEST(LearningRate, InverseSquareRoot) {
  ScheduleSection s = schedule(ScheduleKind::inverse_sqrt, 40);
  const LearningRate rate(s, kLr, timeline, 100);
  for (int u = 1; u <= 4000; ++u) {
    const double paper = std::min(std::pow(u, -0.5), u * std::pow(40, -1.5)) / std::pow(40, -0.5);
    EXPECT_NEAR(rate.at(u), u < 40 ? kLr * paper : std::max(kMin, kLr * paper), 4 * close(kLr))
        << u;
  }
  EXPECT_EQ(rate.at(40), kLr);
  EXPECT_EQ(rate.at(160), kLr / 2);
}

// As a run that goes on from a checkpoint of the stable phase with another length and decay.
TEST(LearningRate, StableDecayMayBeginAtAnyStepOfTheStablePhase) {
  ScheduleSection s = schedule(ScheduleKind::wsd, 10);
  s.decay_steps = 20;
  const LearningRate planned(s, kLr, timeline, 100);
  s.decay_steps = 15;
  const LearningRate cooled(s, kLr, timeline, 50 + 15);
  for (int u = 1; u <= 50; ++u) EXPECT_EQ(cooled.at(u), planned.at(u)) << u;
  for (int u = 51; u <= 65; ++u)
    EXPECT_NEAR(cooled.at(u), kLr - (kLr - kMin) * (u - 50) / 15, close(kLr)) << u;
}

/// "update what" of each turn.
std::vector<std::string> turns(const LearningRate& rate, std::int64_t most = 3) {
  std::vector<std::string> all;
  for (const auto& turn : rate.turns(most))
    all.push_back(std::to_string(turn.update) + ' ' + turn.what);
  return all;
}

TEST(LearningRate, NamesItsTurns) {
  using Texts = std::vector<std::string>;
  const auto of = [](const ScheduleSection& s, std::int64_t run) {
    return turns(LearningRate(s, kLr, timeline, run));
  };
  EXPECT_EQ(of(schedule(ScheduleKind::constant, 0), 100), Texts{});
  EXPECT_EQ(of(schedule(ScheduleKind::cosine, 8), 100),
            (Texts{"8 the warm-up ends", "100 the decay ends"}));
  EXPECT_EQ(of(schedule(ScheduleKind::cosine, 8), 5), Texts{}) << "beyond the run";
  ScheduleSection s = schedule(ScheduleKind::wsd, 8);
  s.decay_steps = 10;
  EXPECT_EQ(of(s, 50), (Texts{"8 the warm-up ends", "40 the decay follows", "50 the decay ends"}));
  s.kind = ScheduleKind::step;
  s.step_size = 10;
  EXPECT_EQ(of(s, 38), (Texts{"8 the warm-up ends", "19 a drop", "29 a drop"}));
  EXPECT_EQ(of(s, 39), (Texts{"8 the warm-up ends", "19 a drop", "29 a drop", "39 a drop"}));
  EXPECT_EQ(of(s, 99), of(s, 39)) << "three are asked for";
  s.step_size = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(of(s, 99), Texts{"8 the warm-up ends"});
  s.step_size.reset();
  s.step_epochs = 0.03;  // 3 of 100 sequences, of which a step takes 4
  EXPECT_EQ(of(s, 99), (Texts{"8 the warm-up ends", "10 a drop", "11 a drop", "12 2 drops"}));
  EXPECT_EQ(of(s, 11), (Texts{"8 the warm-up ends", "10 a drop", "11 a drop"}));
}

TEST(LearningRate, AGivenDecayEndsBeforeTheRun) {
  ScheduleSection s = schedule(ScheduleKind::linear, 0);
  s.decay_steps = 10;
  const LearningRate rate(s, kLr, timeline, 100);
  EXPECT_NEAR(rate.at(5), (kLr + kMin) / 2, close(kLr));
  EXPECT_NEAR(rate.at(10), kMin, close(kLr));
  EXPECT_NEAR(rate.at(99), kMin, close(kLr));
}

// Legal: a short run of a long recipe.
TEST(LearningRate, AWarmUpLongerThanTheRunIsJustItsStart) {
  for (auto kind :
       {ScheduleKind::constant, ScheduleKind::linear, ScheduleKind::cosine, ScheduleKind::wsd}) {
    const LearningRate rate(schedule(kind, 1000), kLr, timeline, 10);
    for (int u = 1; u <= 10; ++u) EXPECT_NEAR(rate.at(u), kLr * u / 1000, close(kLr));
    // The decay has no length: a run that is prolonged goes to the minimum, or stays.
    EXPECT_NEAR(rate.at(1001), kind == ScheduleKind::constant ? kLr : kMin, close(kLr))
        << enum_word(kind);
  }
}

// 4 sequences of 10 tokens a step: 400 tokens, or 0.4 epochs of 100 sequences, are 10 steps.
TEST(LearningRate, LengthsMayBeTokensOrEpochs) {
  ScheduleSection steps = schedule(ScheduleKind::cosine, 10), tokens = steps, epochs = steps;
  steps.decay_steps = 50;
  tokens.warmup_steps = epochs.warmup_steps = std::nullopt;
  tokens.warmup_tokens = 400, tokens.decay_tokens = 2000;
  epochs.warmup_epochs = 0.4, epochs.decay_epochs = 2.0;
  const LearningRate a(steps, kLr, timeline, 200), b(tokens, kLr, timeline, 200),
      c(epochs, kLr, timeline, 200);
  for (int u = 1; u <= 200; ++u) {
    EXPECT_EQ(a.at(u), b.at(u));
    EXPECT_EQ(a.at(u), c.at(u));
  }
}

TEST(LearningRate, LengthsInEpochsMayBeBeyondAnyRun) {
  for (const auto kind : {ScheduleKind::cosine, ScheduleKind::wsd, ScheduleKind::step}) {
    ScheduleSection s = schedule(kind, 0);
    s.warmup_steps.reset();
    s.warmup_epochs = s.decay_epochs = s.step_epochs = 1e300;
    const LearningRate rate(s, kLr, timeline, 100);
    EXPECT_GT(rate.at(100), 0) << enum_word(kind);
    EXPECT_LT(rate.at(100), 1e-9) << enum_word(kind);
    EXPECT_EQ(turns(rate), std::vector<std::string>{}) << enum_word(kind);
  }
}

// With a batch that grows, tokens become steps where they are consumed: here the warm-up's 100
// sequences take steps 1 .. 50 at 2, and the decay's 300 the steps 51 .. 100 at 2 and 101 .. 125 at
// 8.
TEST(LearningRate, DecayTokensCountFromTheEndOfTheWarmUp) {
  const Timeline ramp(batch(2, {{.step = 101, .global = 8}}), 0);
  ScheduleSection s = schedule(ScheduleKind::linear, 0);
  s.warmup_steps = std::nullopt;
  s.warmup_tokens = 1000, s.decay_tokens = 3000;
  const LearningRate rate(s, kLr, ramp, 1000);
  EXPECT_EQ(rate.at(50), kLr);
  EXPECT_NEAR(rate.at(100), kLr - (kLr - kMin) * 50 / 75, close(kLr));
  EXPECT_NEAR(rate.at(125), kMin, close(kLr));
}

// The last 80 sequences of the run are its last ten steps, of 8.
TEST(LearningRate, StableDecayTokensCountBackFromTheEndOfTheRun) {
  const Timeline ramp(batch(2, {{.step = 101, .global = 8}}), 0);
  ScheduleSection s = schedule(ScheduleKind::wsd, 0);
  s.decay_tokens = 800;
  const LearningRate rate(s, kLr, ramp, 200);
  EXPECT_EQ(rate.at(190), kLr);
  EXPECT_NEAR(rate.at(195), (kLr + kMin) / 2, close(kLr));
  EXPECT_NEAR(rate.at(200), kMin, close(kLr));
}

// By tokens the curve is that by steps where all steps are alike.
TEST(LearningRate, ByTokensOfEqualStepsIsBySteps) {
  for (const auto kind : {ScheduleKind::linear, ScheduleKind::cosine, ScheduleKind::wsd,
                          ScheduleKind::step, ScheduleKind::inverse_sqrt}) {
    for (const auto warmup : {deck::Warmup::linear, deck::Warmup::log}) {
      ScheduleSection s = schedule(kind, 10);
      s.warmup = warmup;
      s.step_size = 7;
      if (kind == ScheduleKind::wsd) s.decay_steps = 30;
      const LearningRate steps(s, kLr, timeline, 110);
      s.by = deck::ScheduleBy::tokens;
      const LearningRate tokens(s, kLr, timeline, 110);
      EXPECT_EQ(tokens.decay_steps(), steps.decay_steps());
      for (int u = 1; u <= 120; ++u)
        EXPECT_NEAR(tokens.at(u), steps.at(u), 4 * close(kLr)) << enum_word(kind) << u;
    }
  }
}

// The rate after a share of the run's tokens is the same, however many steps they took.
TEST(LearningRate, ByTokensShortSequencesMoveTheCurveLess) {
  deck::BatchSection short_first = batch(4, {{.step = 121, .global = 8}});
  short_first.curriculum.table = {{.step = 0, .length = 5}, {.step = 101, .length = 10}};
  // 100 steps of 20 tokens, 20 of 40 and 10 of 80: 3600 tokens in 130 steps.
  const Timeline grows(short_first, 100);
  ScheduleSection s = schedule(ScheduleKind::cosine, 13);  // a tenth of the run
  s.by = deck::ScheduleBy::tokens;
  const LearningRate rate(s, kLr, grows, 130);
  for (int u = 1; u <= 130; ++u) {
    const int tokens = u <= 100 ? 20 * u : u <= 120 ? 2000 + 40 * (u - 100) : 2800 + 80 * (u - 120);
    const double cosine = std::cos(std::numbers::pi * (tokens - 360) / 3240);
    const double want = tokens < 360 ? kLr * tokens / 360 : kMin + (kLr - kMin) * (1 + cosine) / 2;
    EXPECT_NEAR(rate.at(u), want, 4 * close(kLr)) << u;
  }
  ASSERT_EQ(rate.turns(9).size(), 2U);
  EXPECT_EQ(rate.turns(9)[0].update, 18);  // 360 tokens
  s.warmup_steps.reset();
  s.warmup_tokens = 2400;  // the same in steps as in tokens
  EXPECT_EQ(LearningRate(s, kLr, grows, 130).turns(9)[0].update, 110);
}

}  // namespace
}  // namespace tessera::optim
