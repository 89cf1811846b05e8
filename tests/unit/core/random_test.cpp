#include "core/random.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

TEST(Philox, MatchesThePublishedVectors) {  // Random123's known-answer file, philox4x32 10
  using A = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (A{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (A{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (A{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomHalf, IsTheLowerHalfOfAWordThenTheUpper) {
  const RandomKey key = random_key(3, RandomPurpose::dropout, 5);
  for (std::uint64_t i = 0; i < 40; ++i) {
    const std::uint32_t word = random_bits(key, 9, i / 2);
    EXPECT_EQ(random_half(key, 9, i), i % 2 == 0 ? word & 0xffffU : word >> 16);
  }
}

TEST(RandomNormal, HasTheMomentsOfANormal) {
  const auto key = random_key(7, RandomPurpose::init, 3);
  const int n = 200000;
  double m1 = 0, m2 = 0, m4 = 0;
  for (int i = 0; i < n; ++i) {
    const double x = random_normal(key, 0, static_cast<std::uint64_t>(i));
    m1 += x, m2 += x * x, m4 += x * x * x * x;
  }
  // Five standard errors of each moment: sd(x) = 1, sd(x^2) = sqrt(2), sd(x^4) = sqrt(96).
  const double root = std::sqrt(n);
  EXPECT_NEAR(m1 / n, 0.0, 5 * 1.0 / root);
  EXPECT_NEAR(m2 / n, 1.0, 5 * std::sqrt(2.0) / root);
  EXPECT_NEAR(m4 / n, 3.0, 5 * std::sqrt(96.0) / root);
}

TEST(RandomKey, DiffersByPurposeAndSite) {  // trap 26: no stream collides with another
  const auto a = random_key(1, RandomPurpose::init, 0),
             b = random_key(1, RandomPurpose::dropout, 0);
  const auto c = random_key(1, RandomPurpose::init, 1), d = random_key(2, RandomPurpose::init, 0);
  EXPECT_FALSE(a.k0 == b.k0 && a.k1 == b.k1);
  EXPECT_FALSE(a.k0 == c.k0 && a.k1 == c.k1);
  EXPECT_FALSE(a.k0 == d.k0 && a.k1 == d.k1);
}

}  // namespace
}  // namespace tessera
