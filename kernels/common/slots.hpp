// Slots of codes (kernels/api/quantize) as the host writes and reads them, to nearest and one
// element after the other: for parameters that are kept so, which come from files and go there.
#pragma once

#include <algorithm>
#include <span>

#include "core/math.hpp"
#include "kernels/common/quantize.hpp"

namespace tessera::kernels {

/// f.operator()<kType>() for formats that parameters are kept in.
template <typename F>
void with_kept_type(const BlockFormat& format, F&& f) {
  TESSERA_CHECK(format.type != BlockType::sign, "codes of {} are not for the host",
                enum_word(format.type));
  with_block_type(format.type, [&]<BlockType kType>() {
    if constexpr (kType != BlockType::sign) f.template operator()<kType>();
  });
}

/// The code of nf4 that stands for 0.
inline constexpr std::uint32_t kNormalZero = 7;

/// The number of means of two neighbours among kNormalFloats that are below x.
inline std::uint32_t normal_code(float x) {
  std::uint32_t code = 0;
  for (std::size_t i = 0; i + 1 < std::size(kNormalFloats.of); ++i)
    code += x > (kNormalFloats.of[i] + kNormalFloats.of[i + 1]) / 2 ? 1U : 0U;
  return code;
}

/// The scale of a block from its largest magnitude().
template <BlockType kType>
BlockScale kept_scale(std::int32_t largest) {
  if constexpr (kType != BlockType::nf4) return block_scale<kBitsOf<kType>>(largest);
  const auto x = std::bit_cast<float>(largest);
  if (largest >= 0x7f800000) return {std::numeric_limits<float>::quiet_NaN(), 0.0F};
  if (x < 0x1p-126F) return {0.0F, 0.0F};
  return {x, 1.0F / x};
}

/// In its low bits.
template <BlockType kType>
std::uint32_t kept_code(float x, float inverse) {
  if constexpr (kType == BlockType::nf4) return normal_code(x * inverse);
  return std::bit_cast<std::uint32_t>(shifted_code(x, inverse));
}

/// Into codes that are 0.
template <BlockType kType>
void encode_block(std::span<const float> values, std::byte* codes, std::byte* scale) {
  constexpr int kBits = kBitsOf<kType>;
  std::int32_t largest = 0;
  for (const float x : values) largest = std::max(largest, magnitude(x));
  const BlockScale s = kept_scale<kType>(largest);
  store_scale<kBits>(scale, s.scale);
  if (s.inverse == 0.0F && kType != BlockType::nf4) return;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto code = s.inverse == 0.0F ? kNormalZero : kept_code<kType>(values[i], s.inverse);
    if constexpr (kBits == 8) {
      codes[i] = static_cast<std::byte>(code & 0xffU);
    } else {
      codes[i / 2] |= static_cast<std::byte>((code & 0xfU) << (i % 2 * 4));
    }
  }
}

/// The bytes of a slot that some of its elements are in: the codes of whole blocks, and their
/// scales.
struct SlotBytes {
  Range codes, scales;
};
/// Of elements [elements) of a slot of n, and what is with them in a block; with the slot's end,
/// also what fills it up.
inline SlotBytes slot_bytes(const BlockFormat& format, std::int64_t n, Range elements) {
  const bool last = elements.end == n;
  const Range blocks{elements.begin / format.block, ceil_div(elements.end, format.block)};
  const std::int64_t scales = format.scales_at(n), each = format.scale_bytes();
  return {.codes = {blocks.begin * format.block * format.bits() / 8,
                    last ? scales : blocks.end * format.block * format.bits() / 8},
          .scales = {scales + blocks.begin * each,
                     last ? format.bytes(n) : scales + blocks.end * each}};
}

/// Codes and scales of whole blocks, as kernels::Quantize makes those that it can. The bytes are
/// slot_bytes().
inline void encode_blocks(const BlockFormat& format, std::span<const float> values,
                          std::span<std::byte> codes, std::span<std::byte> scales) {
  std::ranges::fill(codes, std::byte{0});
  std::ranges::fill(scales, std::byte{0});
  const auto block = static_cast<std::size_t>(format.block);
  with_kept_type(format, [&]<BlockType kType>() {
    constexpr int kBits = kBitsOf<kType>;
    std::byte* scale = scales.data();
    for (std::size_t first = 0; first < values.size();
         first += block, scale += sizeof(StoredScale<kBits>)) {
      encode_block<kType>(values.subspan(first, std::min(block, values.size() - first)),
                          codes.data() + first * kBits / 8, scale);
    }
  });
}

template <BlockType kType>
void decode_block(const std::byte* codes, float scale, std::size_t first, std::span<float> out) {
  constexpr int kBits = kBitsOf<kType>;
  for (std::size_t k = 0; k < out.size(); ++k) {
    const std::size_t i = first + k;
    const auto byte = static_cast<std::uint8_t>(codes[i * kBits / 8]);
    const int shift = kBits == 8 ? 0 : static_cast<int>(i % 2 * 4);
    if constexpr (kType == BlockType::nf4) {
      out[k] = kNormalFloats.of[byte >> shift & 0xf] * scale;
      continue;
    }
    // The code's bits at the top of a byte, and back with its sign.
    const auto top =
        static_cast<std::int8_t>(static_cast<std::uint8_t>(byte >> shift) << (8 - kBits));
    out[k] = static_cast<float>(top >> (8 - kBits)) * scale;
  }
}

/// Elements from `first` of these blocks on, as kernels::SumQuantized makes them.
inline void decode_blocks(const BlockFormat& format, const std::byte* codes,
                          const std::byte* scales, std::int64_t first, std::span<float> out) {
  with_kept_type(format, [&]<BlockType kType>() {
    constexpr int kBits = kBitsOf<kType>;
    while (!out.empty()) {
      const std::int64_t block = first / format.block, in_block = first % format.block;
      const auto n = std::min(out.size(), static_cast<std::size_t>(format.block - in_block));
      decode_block<kType>(
          codes + block * format.block * kBits / 8,
          load_scale<kBits>(scales + block * static_cast<std::int64_t>(sizeof(StoredScale<kBits>))),
          static_cast<std::size_t>(in_block), out.first(n));
      first += static_cast<std::int64_t>(n), out = out.subspan(n);
    }
  });
}

}  // namespace tessera::kernels
