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

}  // namespace tessera::kernels
