// Elements in 8, 4 bits or 1 with a scale a block: where they lie, and one element's and one
// block's numbers, shared by every back end.
#pragma once

#include <limits>
#include <type_traits>

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
  switch (type) {
    case BlockType::int8: f.template operator()<8>(); break;
    case BlockType::int4: f.template operator()<4>(); break;
    case BlockType::sign: f.template operator()<1>(); break;
  }
}

/// The largest |q|; of signs, of the integers whose mean makes the scale.
template <int kBits>
inline constexpr int kMostCode = kBits == 1 ? 1 << 15 : (1 << (kBits - 1)) - 1;

/// A block's scale as it lies in memory.
template <int kBits>
using StoredScale = std::conditional_t<kBits == 1, bf16, float>;

/// Where the scale of a block is in a slot.
template <int kBits>
TESSERA_INLINE std::int64_t scale_at(const SlotLayout& layout, std::int64_t block) {
  return layout.scales_at + static_cast<std::int64_t>(sizeof(StoredScale<kBits>)) * block;
}
template <int kBits>
TESSERA_INLINE float load_scale(const std::byte* p) {
  const auto& scale = *reinterpret_cast<const StoredScale<kBits>*>(p);
  if constexpr (kBits == 1) {
    return std::bit_cast<float>(std::uint32_t{scale.bits} << 16);
  } else {
    return scale;
  }
}
/// Of signs, a number that bf16 holds.
template <int kBits>
TESSERA_INLINE void store_scale(std::byte* p, float scale) {
  auto& stored = *reinterpret_cast<StoredScale<kBits>*>(p);
  if constexpr (kBits == 1) {
    stored.bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(scale) >> 16);
  } else {
    stored = scale;
  }
}

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

/// The scale of a block, from its largest magnitude(); of signs, of the integers whose mean makes
/// their scale, unless it is 0 or not-a-number.
template <int kBits>
TESSERA_INLINE BlockScale block_scale(std::int32_t largest) {
  constexpr auto kMost = static_cast<float>(kMostCode<kBits>);
  const auto x = std::bit_cast<float>(largest);
  if (largest >= 0x7f800000) return {std::numeric_limits<float>::quiet_NaN(), 0.0F};
  if (x < kMost * 0x1p-126F) return {0.0F, 0.0F};
  return {x / kMost, kMost / x};
}

/// The scale of the signs of n elements whose integers have this sum, rounded to bf16. It is
/// normal: the largest of at most 2^15 integers is 2^15. Means beyond the largest bf16 are
/// infinity.
TESSERA_INLINE float sign_scale(const BlockScale& integers, std::int32_t sum, std::int64_t n) {
  const float mean = static_cast<float>(sum) / static_cast<float>(n) * integers.scale;
  const auto bits = std::bit_cast<std::uint32_t>(mean);
  return std::bit_cast<float>((bits + 0x7fffU + (bits >> 16 & 1U)) & 0xffff0000U);
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

/// What the code becomes whose shifted_code is given.
template <typename F>
TESSERA_INLINE F value_of(F shifted, F scale) {
  return (shifted - F(kRoundToInt)) * scale;
}

/// What a block loses of y, which its code makes `value`, in units without the loss scale.
template <typename F>
TESSERA_INLINE F lost_of(F y, F value, F unscale) {
  return (y - value) * unscale;
}

}  // namespace tessera::kernels
