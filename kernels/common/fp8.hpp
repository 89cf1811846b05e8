// Numbers of 8 bits (Micikevicius et al. 2022, FP8 formats for deep learning), and how a tensor
// becomes them: times one scale that puts its largest magnitude at the format's largest number,
// then rounded to nearest even. Written once: `F` is float (host or device) or a vector of floats.
#pragma once

#include <limits>

#include "core/dtype.hpp"
#include "kernels/common/math.hpp"

namespace tessera::kernels {

/// 2^n, a normal number.
constexpr float two_to(int n) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(127 + n) << 23);
}

/// An 8-bit format: a sign, the exponent's bits and kMantissa bits more, denormals below 2^kLeast.
/// E4m3 has no infinities and one not-a-number; E5m2 is the upper half of an IEEE binary16.
struct E4m3 {
  static constexpr int kMantissa = 3, kLeast = -6;
  static constexpr float kLargest = 448.0F;
};
struct E5m2 {
  static constexpr int kMantissa = 2, kLeast = -14;
  static constexpr float kLargest = 57344.0F;
};

/// `f.operator()<Format>()` for DType::e4m3 or e5m2.
template <typename F>
TESSERA_INLINE void with_fp8(DType format, F&& f) {
  format == DType::e4m3 ? f.template operator()<E4m3>() : f.template operator()<E5m2>();
}

/// The format's number nearest to x: of two equally near the even one, for all beyond the largest
/// number that one; NaN stays. What becomes zero loses its sign.
template <typename Format, typename F>
TESSERA_INLINE F rounded_to_fp8(F x) {
  x = select(x > F(Format::kLargest), F(Format::kLargest), x);
  x = select(x < F(-Format::kLargest), F(-Format::kLargest), x);
  // From 2^e on numbers are 2^(e - kMantissa) apart, below 2^kLeast as much as above: what is left
  // of the mantissa where 1.5 x 2^(e + 23 - kMantissa) is added.
  F power = power_of(x);
  power = select(power < F(two_to(Format::kLeast)), F(two_to(Format::kLeast)), power);
  const F big = power * F(1.5F * two_to(23 - Format::kMantissa));
  return (x + big) - big;
}

/// The 8 bits of what rounded_to_fp8 gave.
template <typename Format>
TESSERA_INLINE std::uint8_t fp8_code(float rounded) {
  const auto bits = std::bit_cast<std::uint32_t>(rounded);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return 0x7f;
  // Where f32's exponents end, so do the format's: denormals of one become those of the other.
  const float rebased = std::bit_cast<float>(magnitude) * two_to(-126 - Format::kLeast);
  return static_cast<std::uint8_t>(
      std::bit_cast<std::uint32_t>(rebased) >> (23 - Format::kMantissa) | (bits >> 24 & 0x80U));
}

/// The factors that a tensor is multiplied by on its way to a format and on its way back.
struct Fp8Scale {
  float to = 1, back = 1;
};
/// From the bits of the tensor's largest magnitude. A tensor of zeros has 1; one that holds an
/// infinity or not-a-number is not-a-number throughout.
template <typename Format>
TESSERA_INLINE Fp8Scale fp8_scale(std::uint32_t largest) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kMost = two_to(126);  // whose inverse is a normal number
  if (largest == 0) return {};
  if (largest >= 0x7f800000U) return {kNan, kNan};
  const float to = Format::kLargest / std::bit_cast<float>(largest);
  return to < kMost ? Fp8Scale{to, 1.0F / to} : Fp8Scale{kMost, 1.0F / kMost};
}

}  // namespace tessera::kernels
