#include "core/range_map.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

namespace tessera {
namespace {

// Against one value a byte: random assignments and changes, empty ranges included.
TEST(RangeMap, IsAValueForEveryPlace) {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    RangeMap<int> map;
    std::array<int, 40> plain{};
    for (int change = 1; change < 60; ++change) {
      const std::int64_t a = random() % 41, b = random() % 41;
      const Range range{std::min(a, b), std::max(a, b)};
      std::vector<int> seen, expected;
      if (random() % 2 == 0) {
        map.assign(range, change);
        for (std::int64_t i = range.begin; i < range.end; ++i)
          plain[static_cast<std::size_t>(i)] = change;
      } else {
        map.each(range, [&](int& value) { value += 1'000; });
        for (std::int64_t i = range.begin; i < range.end; ++i)
          plain[static_cast<std::size_t>(i)] += 1'000;
      }
      for (std::int64_t i = 0; i < 40; ++i) {
        int here = -1;
        RangeMap<int> copy = map;  // each() splits
        copy.each({i, i + 1}, [&](int value) { here = value; });
        ASSERT_EQ(here, plain[static_cast<std::size_t>(i)]) << "place " << i;
      }
    }
  }
}

// A range that was assigned as a whole is one part again, however often it was split.
TEST(RangeMap, AssignmentJoinsParts) {
  RangeMap<int> map;
  for (std::int64_t i = 0; i < 10; ++i) map.assign({i, i + 1}, 5);
  int parts = 0;
  map.each({0, 10}, [&](int) { ++parts; });
  EXPECT_EQ(parts, 10);
  map.assign({0, 10}, 6);
  map.each({0, 10}, [&](int) { ++parts; });
  EXPECT_EQ(parts, 11);
}

}  // namespace
}  // namespace tessera
