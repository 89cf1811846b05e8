#include "guard/spike_detector.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tessera::guard {
namespace {

/// A falling loss with noise of +-0.05.
double usual(int step) { return 4.0 - 0.002 * step + 0.05 * std::sin(12.9898 * step); }

TEST(SpikeDetector, UsualNoiseAndFastDescentAreNoSpikes) {
  SpikeDetector detector(100, 10);
  for (int step = 0; step < 500; ++step) EXPECT_FALSE(detector.judge(usual(step))) << step;
  for (int step = 0; step < 100; ++step) EXPECT_FALSE(detector.judge(3 - 0.02 * step));
}

TEST(SpikeDetector, LeapIsASpikeEveryTimeAndDoesNotJoinTheWindow) {
  SpikeDetector detector(100, 10);
  for (int step = 0; step < 100; ++step) detector.judge(usual(step));
  const auto before = detector.recent();
  for (int i = 0; i < 50; ++i) EXPECT_GT(detector.judge(7.5).value_or(0), 10.0);
  EXPECT_EQ(detector.recent(), before);
}

TEST(SpikeDetector, LastingLevelIsLearnt) {
  SpikeDetector detector(20, 10);
  for (int i = 0; i < 20; ++i) detector.judge(usual(i));
  int spikes = 0;
  for (int i = 0; i < 200; ++i) spikes += detector.judge(7 + usual(i)) ? 1 : 0;
  EXPECT_GE(spikes, 10);
  EXPECT_LE(spikes, 40);
  EXPECT_FALSE(detector.judge(7 + usual(200)));
}

TEST(SpikeDetector, NothingIsJudgedByLessThanHalfAWindow) {
  SpikeDetector detector(10, 10);
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(detector.judge(1.0));
  EXPECT_FALSE(detector.judge(50.0));  // the fifth: four do not make half of ten
  EXPECT_TRUE(detector.judge(50.0));
}

TEST(SpikeDetector, DeviationIsThatOfANormalDistribution) {
  SpikeDetector detector(10, 10);
  for (int i = 0; i < 10; ++i) detector.judge(3.0 - 0.1 * i);
  // Median 2.6, of distances 0.3 (of even numbers the upper): 10 deviations are 4.4478.
  EXPECT_TRUE(detector.judge(2.6 + 4.48));
  EXPECT_FALSE(SpikeDetector(detector).judge(2.6 + 4.42));
  EXPECT_FALSE(SpikeDetector(detector).judge(2.6 - 4.48));
}

TEST(SpikeDetector, WindowHoldsTheLastLosses) {
  SpikeDetector detector(4, 10), shorter(2, 10);
  for (double loss : {5.0, 4.0, 3.0, 2.0, 1.0}) detector.judge(loss);
  EXPECT_EQ(detector.recent(), (std::vector{4.0, 3.0, 2.0, 1.0}));
  shorter.restore(detector.recent());
  EXPECT_EQ(shorter.recent(), (std::vector{2.0, 1.0}));
}

TEST(SpikeDetector, EqualLossesStillHaveAScale) {
  SpikeDetector detector(10, 10);
  for (int i = 0; i < 10; ++i) detector.judge(2.0);
  EXPECT_FALSE(detector.judge(2.01));  // z = 5
  EXPECT_TRUE(detector.judge(2.03));   // z = 15
}

TEST(SpikeDetector, RestoredWindowJudgesAlike) {
  SpikeDetector whole(20, 10), first(20, 10), second(20, 10);
  for (int step = 0; step < 60; ++step) {
    if (step == 33) second.restore(first.recent());
    const double loss = step % 13 == 12 ? 9.0 : usual(step);
    const auto verdict = whole.judge(loss);
    EXPECT_EQ((step < 33 ? first : second).judge(loss), verdict) << step;
  }
}

TEST(SpikeDetector, NotFiniteLossesAreLeftToTheOtherGuard) {
  SpikeDetector detector(4, 10);
  for (int i = 0; i < 4; ++i) detector.judge(1.0);
  EXPECT_FALSE(detector.judge(std::numeric_limits<double>::infinity()));
  EXPECT_FALSE(detector.judge(std::numeric_limits<double>::quiet_NaN()));
  EXPECT_EQ(detector.recent().size(), 4U);
}

}  // namespace
}  // namespace tessera::guard
