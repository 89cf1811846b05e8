// Conversions of the 16-bit formats over every bit pattern and every tie (trap 57).
#include "core/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tessera {
namespace {

template <typename H>
void round_trips_every_pattern() {
  for (std::uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    H h;
    h.bits = static_cast<std::uint16_t>(bits);
    const auto value = static_cast<float>(h);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(H(value)))) << bits;
    } else {
      EXPECT_EQ(H(value).bits, bits);
    }
  }
}

TEST(Bf16, RoundTripsEveryPattern) { round_trips_every_pattern<bf16>(); }
TEST(F16, RoundTripsEveryPattern) { round_trips_every_pattern<f16>(); }

template <typename H>
void ties_go_to_even() {
  // Between neighbours a < b of equal sign: the middle goes to the even one, a hair off goes to the
  // nearer.
  const std::uint32_t infinity = H(std::numeric_limits<float>::infinity()).bits;
  for (std::uint32_t bits = 0; bits + 1 < infinity; ++bits) {
    H a, b;
    a.bits = static_cast<std::uint16_t>(bits);
    b.bits = static_cast<std::uint16_t>(bits + 1);
    const double middle = (static_cast<double>(static_cast<float>(a)) + static_cast<float>(b)) / 2;
    const auto m = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(m), middle);
    const auto even = static_cast<std::uint16_t>((bits & 1U) == 0 ? bits : bits + 1);
    EXPECT_EQ(H(m).bits, even);
    EXPECT_EQ(H(std::nextafter(m, 0.0F)).bits, a.bits);
    EXPECT_EQ(H(std::nextafter(m, std::numeric_limits<float>::infinity())).bits, b.bits);
    EXPECT_EQ(H(-m).bits, even | 0x8000U);
  }
}

TEST(Bf16, TiesGoToEven) { ties_go_to_even<bf16>(); }
TEST(F16, TiesGoToEven) { ties_go_to_even<f16>(); }

TEST(Bf16, NanWithLowPayloadStaysNan) {
  const float nan = std::bit_cast<float>(0x7f800001U);
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(nan))));
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7fffffffU)))));
}

TEST(F16, OverflowsToInfinity) {
  EXPECT_EQ(static_cast<float>(f16(65519.0F)), 65504.0F);
  EXPECT_TRUE(std::isinf(static_cast<float>(f16(65520.0F))));
}

}  // namespace
}  // namespace tessera
