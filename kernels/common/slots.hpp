// Slots of codes (kernels/api/quantize) as the host writes and reads them, to nearest and one
// element after the other: for parameters that are kept so, which come from files and go there.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>

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

/// The slot of these elements, format.bytes(their number) bytes, as kernels::Quantize makes it.
inline void encode_slot(const BlockFormat& format, std::span<const float> values, std::byte* slot) {
  const SlotLayout layout = slot_layout(format, std::ssize(values));
  std::memset(slot, 0, static_cast<std::size_t>(layout.bytes));
  with_integer_bits(format, [&]<int kBits>() {
    for (std::int64_t b = 0; b < layout.blocks; ++b) {
      const std::int64_t first = b * layout.block,
                         n = std::min(layout.block, layout.elements - first);
      encode_block<kBits>(
          values.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n)),
          slot + first * kBits / 8, slot + scale_at<kBits>(layout, b));
    }
  });
}

/// Elements first .. first + out.size() of a slot of n, as kernels::SumQuantized makes them.
inline void decode_slot(const BlockFormat& format, const std::byte* slot, std::int64_t n,
                        std::int64_t first, std::span<float> out) {
  const SlotLayout layout = slot_layout(format, n);
  TESSERA_CHECK(first >= 0 && first + std::ssize(out) <= n, "elements {} .. {} of a slot of {}",
                first, first + std::ssize(out), n);
  with_integer_bits(format, [&]<int kBits>() {
    for (std::size_t k = 0; k < out.size(); ++k) {
      const std::int64_t i = first + static_cast<std::int64_t>(k);
      const auto byte = static_cast<std::uint8_t>(slot[i * kBits / 8]);
      const int shift = kBits == 8 ? 0 : static_cast<int>(i % 2 * 4);
      // The code's bits at the top of a byte, and back with its sign.
      const auto top =
          static_cast<std::int8_t>(static_cast<std::uint8_t>(byte >> shift) << (8 - kBits));
      out[k] = static_cast<float>(top >> (8 - kBits)) *
               load_scale<kBits>(slot + scale_at<kBits>(layout, i / layout.block));
    }
  });
}

}  // namespace tessera::kernels
