#include "kernels/common/math.hpp"

#include <bit>
#include <limits>

#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

double ulp(double x) {
  const auto f = static_cast<float>(std::abs(x));
  return static_cast<double>(std::nextafter(f, 3e38F)) - static_cast<double>(f);
}

/// f(x) for floats all over [low, high], a prime number of bit patterns apart.
template <typename F>
void sweep(float low, float high, F f) {
  for (std::uint32_t bits = 0; bits < 0x7f800000U; bits += 1009) {
    const auto x = std::bit_cast<float>(bits);
    if (x <= high) f(x);
    if (-x >= low) f(-x);
  }
}

TEST(Math, ExpIsWithinTwoUlp) {
  double worst = 0;
  sweep(-120, 88.72F, [&](float x) {
    const double want = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(exp_of(x)) - want) / ulp(want));
  });
  EXPECT_LE(worst, 2);
  EXPECT_GT(worst, 0.5);  // the sweep did look at something
}

TEST(Math, ExpOfSpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_of(0.0F), 1.0F);
  EXPECT_EQ(exp_of(-infinity), 0.0F);
  EXPECT_EQ(exp_of(infinity), infinity);
  EXPECT_EQ(exp_of(89.0F), infinity);
  EXPECT_EQ(exp_of(-103.0F), 0x1p-149F);
  EXPECT_TRUE(std::isnan(exp_of(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Math, SigmoidIsWithinFourUlp) {
  double worst = 0;
  sweep(-87, 100, [&](float x) {
    const double want = 1 / (1 + std::exp(-static_cast<double>(x)));
    worst = std::max(worst, std::abs(static_cast<double>(sigmoid(x)) - want) / ulp(want));
  });
  EXPECT_LE(worst, 4);
}

TEST(Math, TanhIsWithinFourUlpAndItsSlopeWithinEight) {
  double worst = 0, worst_slope = 0;
  sweep(-100, 100, [&](float x) {
    const double want = std::tanh(static_cast<double>(x));
    const float got = tanh_of(x);
    if (std::abs(want) >= 0x1p-126) {
      worst = std::max(worst, std::abs(static_cast<double>(got) - want) / ulp(want));
    }
    const double slope = 1 - want * want;
    worst_slope =
        std::max(worst_slope, std::abs(static_cast<double>(tanh_slope(got)) - slope) / 0x1p-24);
  });
  EXPECT_LE(worst, 4);
  EXPECT_GT(worst, 0.5);
  EXPECT_LE(worst_slope, 8);
  EXPECT_GT(worst_slope, 0.5);
  EXPECT_EQ(tanh_of(0.0F), 0.0F);
  EXPECT_EQ(tanh_of(std::numeric_limits<float>::infinity()), 1.0F);
  EXPECT_EQ(tanh_of(-std::numeric_limits<float>::infinity()), -1.0F);
  EXPECT_TRUE(std::isnan(tanh_of(std::numeric_limits<float>::quiet_NaN())));
}

// What this file computes one by one and what the baseline's vectors compute are the same bits.
TEST(Math, ScalarAndVectorAgreeToTheBit) {
  const auto device = make_cpu_device({.threads = 1, .isa = Isa::baseline});
  const auto x = Tensor::random(DType::f32, {1003}, 1, 5);
  const Tensor y(DType::f32, {1003}), want(DType::f32, {1003});
  run(*device, Activate{.x = x.view(), .y = y.view()});
  for (int i = 0; i < 1003; ++i) want.view().as<float>()[i] = gelu(x.view().as<float>()[i]);
#ifndef __FMA__
  EXPECT_TRUE(y.same_bits(want));
#endif
}

}  // namespace
}  // namespace tessera::kernels::test
