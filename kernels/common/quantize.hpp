// Elements in 8 or 4 bits with a scale a block: where they lie, and one element's and one block's
// numbers, shared by every back end.
#pragma once

#include <limits>

#include "core/math.hpp"
#include "kernels/api/quantize.hpp"
#include "kernels/common/math.hpp"

namespace tessera::kernels {

/// A BlockFormat's answers for slots of some number of elements.
struct SlotLayout {
  std::int64_t elements, block, blocks, scales_at, bytes;
};

inline SlotLayout slot_layout(const BlockFormat& format, std::int64_t n) {
  return {.elements = n,
          .block = format.block,
          .blocks = ceil_div(n, format.block),
          .scales_at = format.scales_at(n),
          .bytes = format.bytes(n)};
}

/// `f.operator()<kBits>()` for the bits of an element.
template <typename F>
[[gnu::always_inline]] inline void with_bits(BlockType type, F&& f) {
  type == BlockType::int8 ? f.template operator()<8>() : f.template operator()<4>();
}

/// The largest |q|.
template <int kBits>
inline constexpr int kMostCode = (1 << (kBits - 1)) - 1;

/// Bits of |x|: they order like magnitudes, then infinity, then not-a-numbers.
TESSERA_INLINE std::int32_t magnitude(float x) {
  return std::bit_cast<std::int32_t>(x) & 0x7fffffff;
}

/// x becomes q = x inverse to nearest even, and q becomes q scale; every q is 0 where inverse is.
/// |q| needs no clamp: fl(largest fl(most / largest)) < most + 1/2. Quantising q scale in f32 gives
/// q and scale again. Only the largest f32 of all comes back as infinity, from 8 bits.
struct BlockScale {
  float scale, inverse;
};

/// The scale of a block, from its largest magnitude().
template <int kBits>
TESSERA_INLINE BlockScale block_scale(std::int32_t largest) {
  constexpr auto kMost = static_cast<float>(kMostCode<kBits>);
  const auto x = std::bit_cast<float>(largest);
  if (largest >= 0x7f800000) return {std::numeric_limits<float>::quiet_NaN(), 0.0F};
  if (x < kMost * 0x1p-126F) return {0.0F, 0.0F};
  return {x / kMost, kMost / x};
}

/// The low bits of this number's mantissa are q's; `F` is a float or a vector of floats. Product
/// and sum are rounded one by one.
template <typename F>
TESSERA_INLINE F shifted_code(F x, F inverse) {
  return x * inverse + F(kRoundToInt);
}
/// The same with a random offset, which could lead beyond the largest code.
template <int kBits, typename F>
TESSERA_INLINE F shifted_code(F x, F inverse, F offset) {
  constexpr auto kMost = static_cast<float>(kMostCode<kBits>);
  F q = x * inverse + offset;
  q = select(q > F(kMost), F(kMost), q);
  q = select(q < F(-kMost), F(-kMost), q);
  return q + F(kRoundToInt);
}

/// In (-1/2, 1/2), as often positive as negative.
TESSERA_INLINE float random_offset(std::uint32_t bits) {
  return (static_cast<float>(static_cast<std::int32_t>(bits) >> 8) + 0.5F) * 0x1p-24F;
}

/// Where a Chance's numbers are for an element; the sample is read when the kernel runs.
struct ChanceRule {
  RandomKey key;
  std::int64_t first, stride;
  /// Of element i of a slot, which random number.
  TESSERA_INLINE std::int64_t element(std::int64_t slot, std::int64_t i) const {
    return first + slot * stride + i;
  }
};
inline ChanceRule chance_rule(const Chance& chance) {
  return {.key = chance.key(), .first = chance.first, .stride = chance.stride};
}

/// What a block loses of y, whose code's shifted_code is given, in units without the loss scale.
template <typename F>
TESSERA_INLINE F lost_of(F y, F shifted, F scale, F unscale) {
  return (y - (shifted - F(kRoundToInt)) * scale) * unscale;
}

}  // namespace tessera::kernels
