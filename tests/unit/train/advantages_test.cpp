// How much better answers are than others to the same prompt.
#include "train/policy/advantages.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::train {
namespace {

TEST(GroupAdvantages, AreDeviationsFromTheMeanOfTheGroup) {
  const std::vector<double> rewards{1, 0, 0, 1, 5, 5, 5, 9};
  const auto plain = group_advantages(rewards, 4, false);
  const std::vector<double> want{0.5, -0.5, -0.5, 0.5, -1, -1, -1, 3};
  EXPECT_EQ(plain, want);
  const auto scaled = group_advantages(rewards, 4, true);
  for (std::size_t i = 0; i < want.size(); ++i) {
    // Squares of the groups' deviations add up to 1 and 12, over 3.
    const double deviation = std::sqrt((i < 4 ? 1.0 : 12.0) / 3);
    EXPECT_NEAR(scaled[i], want[i] / (deviation + 1e-4), 1e-14);
  }
}

// 0.1 is no binary fraction: the mean of several is not always that number.
TEST(GroupAdvantages, OfEqualRewardsAreNothing) {
  for (const double reward : {0.0, 0.1, -1e3 / 3}) {
    const std::vector<double> rewards(7, reward);
    for (const double a : group_advantages(rewards, 7, true))
      EXPECT_LE(std::abs(a), 1e4 * 7 * 0x1p-52 * std::abs(reward));
  }
}

// Of three tokens, by hand: deltas are 0 + 0.5 * 2 - 1, 0.5 + 0.5 * 4 - 2 and 3 - 4.
TEST(GeneralisedAdvantages, AreSumsOfWhatWentBetter) {
  const std::vector<double> rewards{0, 0.5, 3};
  const std::vector<float> values{1, 2, 4};
  EXPECT_EQ(generalised_advantages(rewards, values, 0.5, 0.5),
            (std::vector<double>{0.0625, 0.25, -1}));
  // With lambda 1 an advantage is what comes, less the value; with 0 a delta.
  EXPECT_EQ(generalised_advantages(rewards, values, 1, 1), (std::vector<double>{2.5, 1.5, -1}));
  EXPECT_EQ(generalised_advantages(rewards, values, 1, 0), (std::vector<double>{1, 2.5, -1}));
}

}  // namespace
}  // namespace tessera::train
