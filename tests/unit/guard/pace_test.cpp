#include "guard/pace.hpp"

#include <gtest/gtest.h>

#include <array>

#include "guard/stragglers.hpp"

namespace tessera::guard {
namespace {

TEST(Pace, ChangeIsToldOnceEachWay) {
  Pace pace(10, 1.25);
  int changes = 0;
  const auto run = [&](double seconds, int steps) {
    std::optional<Pace::Change> last;
    for (int i = 0; i < steps; ++i) {
      if (const auto change = pace.judge(i % 4 == 0 ? 3 * seconds : seconds)) {
        last = change, ++changes;
      }
    }
    return last;
  };
  EXPECT_FALSE(run(1.0, 40));  // outliers of every fourth step move no median
  const auto slower = run(1.5, 40);
  ASSERT_TRUE(slower);
  EXPECT_EQ(slower->before, 1.0);
  EXPECT_EQ(slower->now, 1.5);
  EXPECT_FALSE(run(1.6, 40));
  const auto faster = run(1.0, 40);
  ASSERT_TRUE(faster);
  EXPECT_EQ(faster->now, 1.0);
  EXPECT_EQ(changes, 2);
}

TEST(Pace, ChangeIsToldWhenAWindowIsFull) {
  Pace pace(10, 1.25);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(pace.judge(1.0));
  for (int i = 0; i < 9; ++i) EXPECT_FALSE(pace.judge(1.25));
  EXPECT_TRUE(pace.judge(1.25));
}

TEST(Stragglers, SpreadOfOddAndEvenNumbersOfRanks) {
  const RankSpread odd = rank_spread(std::array{3.0, 1.0, 2.0});
  EXPECT_EQ(odd.least, 1.0);
  EXPECT_EQ(odd.median, 2.0);
  EXPECT_EQ(odd.most, 3.0);
  EXPECT_EQ(odd.slowest, 0);
  EXPECT_EQ(rank_spread(std::array{1.0, 2.0}).median, 2.0);
  EXPECT_EQ(rank_spread(std::array{7.0}).slowest, 0);
}

TEST(Stragglers, PersistentOneIsNamedOnceAndAgainAfterItRecovered) {
  Stragglers stragglers(10);
  const RankSpread even{.least = 1, .median = 1, .most = 1.1, .slowest = 2};
  const RankSpread slow{.least = 1, .median = 1, .most = 1.3, .slowest = 2};
  int named = 0;
  for (int i = 0; i < 30; ++i) named += stragglers.judge(even) ? 1 : 0;
  EXPECT_EQ(named, 0);
  for (int i = 0; i < 30; ++i) {
    if (const auto rank = stragglers.judge(i % 6 == 5 ? even : slow)) {
      EXPECT_EQ(*rank, 2);
      ++named;
    }
  }
  EXPECT_EQ(named, 1);
  for (int i = 0; i < 30; ++i) named += stragglers.judge(even) ? 1 : 0;
  EXPECT_EQ(named, 1);
  for (int i = 0; i < 30; ++i) named += stragglers.judge(slow) ? 1 : 0;
  EXPECT_EQ(named, 2);
}

TEST(Stragglers, WhatNobodyWouldNoticeIsNotNamed) {
  Stragglers stragglers(10);
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(stragglers.judge({.least = 1e-3, .median = 1e-3, .most = 1.9e-3, .slowest = 1}));
  }
}

TEST(Stragglers, SlownessThatWandersNamesNobody) {
  Stragglers stragglers(10);
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(stragglers.judge({.least = 1, .median = 1, .most = 2, .slowest = i % 3}));
  }
}

}  // namespace
}  // namespace tessera::guard
