#include "core/exact_sum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace tessera {
namespace {

using Words = std::array<std::int64_t, kExactSumWords>;

TEST(ExactSum, KeepsWhatRoundingWouldLose) {
  Words w{};
  exact_add(w, 0x1p200);
  exact_add(w, 0x1p-298);
  exact_add(w, -0x1p200);
  EXPECT_EQ(exact_value(w), 0x1p-298);
}

TEST(ExactSum, DoesNotDependOnOrderOrGrouping) {
  std::mt19937_64 random(5);
  std::vector<double> terms;
  for (int i = 0; i < 3000; ++i) {  // squares of f32 over their whole exponent range
    const auto bits = static_cast<std::uint32_t>(random()) & 0x7fffffffU;
    const float f = std::bit_cast<float>(bits);
    if (std::isfinite(f)) terms.push_back(static_cast<double>(f) * f);
  }
  Words first{};
  for (double t : terms) exact_add(first, t);
  for (int round = 0; round < 5; ++round) {
    std::shuffle(terms.begin(), terms.end(), random);
    Words a{}, b{};
    for (std::size_t i = 0; i < terms.size(); ++i) exact_add(i % 3 == 0 ? a : b, terms[i]);
    exact_normalise(a);
    exact_merge(a, b);
    EXPECT_EQ(exact_value(a), exact_value(first));
  }
}

TEST(ExactSum, RoundsOnceToNearestEven) {
  Words w{};
  exact_add(w, 1.0);
  exact_add(w, 0x1p-53);  // a tie: 1 is even
  EXPECT_EQ(exact_value(w), 1.0);
  exact_add(w, 0x1p-300);  // a hair above the tie
  EXPECT_EQ(exact_value(w), 1.0 + 0x1p-52);
  exact_add(w, -0x1p-299);  // a hair below
  EXPECT_EQ(exact_value(w), 1.0);
}

TEST(ExactSum, HandlesNegativeTotals) {
  Words w{};
  for (int i = 0; i < 1000; ++i) exact_add(w, -0.1F);
  EXPECT_EQ(exact_value(w), -1000.0 * static_cast<double>(0.1F));
}

TEST(ExactSum, ReportsWhatWasNotFinite) {
  Words w{};
  w[kExactSumInf] = 1;
  EXPECT_TRUE(std::isinf(exact_value(w)));
  w[kExactSumNan] = 1;
  EXPECT_TRUE(std::isnan(exact_value(w)));
}

}  // namespace
}  // namespace tessera
