// The arithmetic of exact sums (core/exact_sum.hpp) as constexpr functions, which device code
// shares.
#pragma once

#include <bit>
#include <limits>
#include <utility>

#include "core/exact_sum.hpp"

namespace tessera::exact_words {

/// add(limb, part) for each limb that a number has a part in, |part| < 2^32: `magnitude` times
/// 2^exponent or the negative of that, a multiple of 2^-320.
template <typename Add>
constexpr void split(std::uint64_t magnitude, int exponent, bool negative, Add&& add) {
  const int shift = exponent - kExactSumExponent;
  unsigned __int128 wide = magnitude;
  int limb = 0;
  if (shift >= 0) {
    limb = shift / 32;
    wide <<= shift % 32;
  } else {
    wide >>= -shift;  // the bits below are 0: it is a multiple of 2^-320
  }
  for (; wide != 0; wide >>= 32, ++limb) {
    const auto part = static_cast<std::int64_t>(static_cast<std::uint64_t>(wide) & 0xffffffffU);
    add(limb, negative ? -part : part);
  }
}

/// The same of a finite number.
template <typename Add>
constexpr void split(double value, Add&& add) {
  if (value == 0) return;
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto exponent = static_cast<int>((bits >> 52) & 0x7ffU);
  const std::uint64_t mantissa =
      (bits & ((1ULL << 52) - 1)) | (1ULL << 52);  // f32 products are never denormal doubles
  split(mantissa, exponent - 1075, value < 0, std::forward<Add>(add));
}

constexpr void normalise(std::int64_t* words) {
  std::int64_t carry = 0;
  for (int i = 0; i + 1 < kExactSumLimbs; ++i) {
    const std::int64_t limb = words[i] + carry;
    carry = limb >> 32;  // floor
    words[i] = limb & 0xffffffff;
  }
  words[kExactSumLimbs - 1] += carry;
}

/// 2^n for n in [-1022, 1023].
constexpr double power_of_two(int n) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(n + 1023) << 52);
}

/// exact_value; `sum` is used up.
constexpr double value(std::int64_t* sum) {
  if (sum[kExactSumNan] > 0) return std::numeric_limits<double>::quiet_NaN();
  if (sum[kExactSumInf] > 0) return std::numeric_limits<double>::infinity();
  normalise(sum);
  const bool negative = sum[kExactSumLimbs - 1] < 0;
  if (negative) {
    for (int i = 0; i < kExactSumLimbs; ++i) sum[i] = -sum[i];
    normalise(sum);
  }
  int top = kExactSumLimbs - 1;
  while (top > 0 && sum[top] == 0) --top;
  // Four limbs hold at least 97 significant bits (or all there are); a sticky bit stands for all
  // that lies below them.
  unsigned __int128 window = 0;
  for (int i = top; i > top - 4; --i) {
    window = (window << 32) | static_cast<std::uint64_t>(i >= 0 ? sum[i] : 0);
  }
  bool sticky = false;
  for (int i = top - 4; i >= 0; --i) sticky = sticky || sum[i] != 0;
  if (window == 0) return 0;
  int drop = 0;
  while ((window >> drop) >> 64 != 0) ++drop;
  auto kept = static_cast<std::uint64_t>(window >> drop);
  sticky = sticky || (window & ((static_cast<unsigned __int128>(1) << drop) - 1)) != 0;
  if (sticky)
    kept |= 1U;  // far below the 53rd bit, since kept has at least 65 - 32 + 31 bits; see the test
  // The power lies in [2^-416, 2^320] and the result in [2^-320, 2^386]: only `kept` is rounded.
  const double result =
      static_cast<double>(kept) * power_of_two(drop + 32 * (top - 3) + kExactSumExponent);
  return negative ? -result : result;
}

}  // namespace tessera::exact_words
