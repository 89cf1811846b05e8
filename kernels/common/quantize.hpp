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

/// `f.operator()<kType>()`.
template <typename F>
[[gnu::always_inline]] inline void with_block_type(BlockType type, F&& f) {
  switch (type) {
    case BlockType::int8: f.template operator()<BlockType::int8>(); break;
    case BlockType::int4: f.template operator()<BlockType::int4>(); break;
    case BlockType::sign: f.template operator()<BlockType::sign>(); break;
    case BlockType::nf4: f.template operator()<BlockType::nf4>(); break;
  }
}
template <BlockType kType>
inline constexpr int kBitsOf = static_cast<int>(BlockFormat{.type = kType}.bits());

/// `f.operator()<kBits>()` for the bits of an element of one of kRoundedTypes, and which one has so
/// many.
template <typename F>
[[gnu::always_inline]] inline void with_bits(BlockType type, F&& f) {
  with_block_type(
      type, [&]<BlockType kType>() __attribute__((always_inline)) {
        if constexpr (kType != BlockType::nf4) f.template operator()<kBitsOf<kType>>();
      });
}
template <int kBits>
inline constexpr BlockType kRoundedType = kBits == 8   ? BlockType::int8
                                          : kBits == 4 ? BlockType::int4
                                                       : BlockType::sign;

/// What the codes of nf4 stand for, times the block's scale.
struct NormalFloats {
  float of[16];
};
TESSERA_INLINE constexpr NormalFloats normal_floats() {
  return {{-1.0F, -0.6961928009986877F, -0.5250730514526367F, -0.39491748809814453F,
           -0.28444138169288635F, -0.18477343022823334F, -0.09105003625154495F, 0.0F,
           0.07958029955625534F, 0.16093020141124725F, 0.24611230194568634F, 0.33791524171829224F,
           0.44070982933044434F, 0.5626170039176941F, 0.7229568362236023F, 1.0F}};
}
alignas(64) inline constexpr NormalFloats kNormalFloats = normal_floats();

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
