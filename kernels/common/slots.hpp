// Slots of codes (kernels/api/quantize) as the host writes and reads them, to nearest and one
// element after the other: for parameters that are kept so, which come from files and go there.
#pragma once

#include <algorithm>
#include <span>

#include "core/math.hpp"
#include "kernels/common/quantize.hpp"

namespace tessera::kernels {

/// f.operator()<kBits>() for formats whose values are integers times a scale.
template <typename F>
void with_integer_bits(const BlockFormat& format, F&& f) {
  TESSERA_CHECK(format.type == BlockType::int8 || format.type == BlockType::int4,
                "codes of {} are not for the host", enum_word(format.type));
  with_bits(format.type, [&]<int kBits>() {
    if constexpr (kBits > 1) f.template operator()<kBits>();
  });
}

template <int kBits>
void encode_block(std::span<const float> values, std::byte* codes, std::byte* scale) {
  std::int32_t largest = 0;
  for (const float x : values) largest = std::max(largest, magnitude(x));
  const BlockScale s = block_scale<kBits>(largest);
  store_scale<kBits>(scale, s.scale);
  if (s.inverse == 0.0F) return;  // all codes are 0, as they are
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto code = std::bit_cast<std::uint32_t>(shifted_code(values[i], s.inverse));
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

/// Codes and scales of whole blocks, as kernels::Quantize makes them. The bytes are slot_bytes().
inline void encode_blocks(const BlockFormat& format, std::span<const float> values,
                          std::span<std::byte> codes, std::span<std::byte> scales) {
  std::ranges::fill(codes, std::byte{0});
  std::ranges::fill(scales, std::byte{0});
  const auto block = static_cast<std::size_t>(format.block);
  with_integer_bits(format, [&]<int kBits>() {
    std::byte* scale = scales.data();
    for (std::size_t first = 0; first < values.size();
         first += block, scale += sizeof(StoredScale<kBits>)) {
      encode_block<kBits>(values.subspan(first, std::min(block, values.size() - first)),
                          codes.data() + first * kBits / 8, scale);
    }
  });
}

template <int kBits>
void decode_block(const std::byte* codes, float scale, std::size_t first, std::span<float> out) {
  for (std::size_t k = 0; k < out.size(); ++k) {
    const std::size_t i = first + k;
    const auto byte = static_cast<std::uint8_t>(codes[i * kBits / 8]);
    const int shift = kBits == 8 ? 0 : static_cast<int>(i % 2 * 4);
    // The code's bits at the top of a byte, and back with its sign.
    const auto top =
        static_cast<std::int8_t>(static_cast<std::uint8_t>(byte >> shift) << (8 - kBits));
    out[k] = static_cast<float>(top >> (8 - kBits)) * scale;
  }
}

/// Elements from `first` of these blocks on, as kernels::SumQuantized makes them.
inline void decode_blocks(const BlockFormat& format, const std::byte* codes,
                          const std::byte* scales, std::int64_t first, std::span<float> out) {
  with_integer_bits(format, [&]<int kBits>() {
    while (!out.empty()) {
      const std::int64_t block = first / format.block, in_block = first % format.block;
      const auto n = std::min(out.size(), static_cast<std::size_t>(format.block - in_block));
      decode_block<kBits>(
          codes + block * format.block * kBits / 8,
          load_scale<kBits>(scales + block * static_cast<std::int64_t>(sizeof(StoredScale<kBits>))),
          static_cast<std::size_t>(in_block), out.first(n));
      first += static_cast<std::int64_t>(n), out = out.subspan(n);
    }
  });
}

}  // namespace tessera::kernels
