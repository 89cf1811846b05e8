#include "kernels/common/quantize.hpp"

#include "kernels/common/tree.hpp"
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

using NativeByte = std::int8_t __attribute__((vector_size(kNative)));
using NativePair = std::uint64_t __attribute__((vector_size(4 * kNative)));
using NativePairByte = std::uint8_t __attribute__((vector_size(kNative / 2)));

/// Sixteen elements' codes.
template <int kBits>
struct CodeBytes {
  static constexpr std::int64_t kBytes = kLanes * kBits / 8, kPartBytes = kBytes / kParts;
  static std::int64_t of(std::int64_t n) { return (n * kBits + 7) / 8; }
};

/// From shifted_code()'s low bits.
template <int kBits>
TESSERA_INLINE void store_codes(std::byte* p, const Vec& shifted, std::int64_t count) {
  using Codes = CodeBytes<kBits>;
  std::byte padded[Codes::kBytes];
  std::byte* to = count < kLanes ? padded : p;
  for (int i = 0; i < kParts; ++i) {
    const auto bits = (NativeUint)shifted.part[i];
    if constexpr (kBits == 8) {
      const auto bytes = __builtin_convertvector(bits, NativeByte);
      std::memcpy(to + i * Codes::kPartBytes, &bytes, sizeof(bytes));
    } else {
      const auto pairs = (NativePair)(bits & 0xfU);  // the first of two in the low half
      const auto bytes = __builtin_convertvector(pairs | pairs >> 28, NativePairByte);
      std::memcpy(to + i * Codes::kPartBytes, &bytes, sizeof(bytes));
    }
  }
  if (count < kLanes) std::memcpy(p, padded, static_cast<std::size_t>(Codes::of(count)));
}

/// The codes as numbers; lanes beyond `count` are 0.
template <int kBits>
TESSERA_INLINE Vec load_codes(const std::byte* p, std::int64_t count) {
  using Codes = CodeBytes<kBits>;
  std::byte padded[Codes::kBytes] = {};
  if (count < kLanes) {
    std::memcpy(padded, p, static_cast<std::size_t>(Codes::of(count)));
    p = padded;
  }
  Vec v;
  for (int i = 0; i < kParts; ++i) {
    NativeInt codes;
    if constexpr (kBits == 8) {
      NativeByte bytes;
      std::memcpy(&bytes, p + i * Codes::kPartBytes, sizeof(bytes));
      codes = __builtin_convertvector(bytes, NativeInt);
    } else {
      NativePairByte bytes;
      std::memcpy(&bytes, p + i * Codes::kPartBytes, sizeof(bytes));
      const auto pairs = __builtin_convertvector(bytes, NativePair);
      codes = (NativeInt)(pairs << 28 | pairs << 56) >> 28;  // each at the top of its half
    }
    v.part[i] = __builtin_convertvector(codes, NativeFloat);
  }
  return v;
}

template <typename T>
std::int32_t largest_magnitude(const T* x, std::int64_t n) {
  Mask largest;
  for (auto& part : largest.part) part = NativeInt{};
  for_vectors(n, [&](std::int64_t i, std::int64_t count) {
    const Vec v = load(x + i, count);
    for (int p = 0; p < kParts; ++p) {
      const NativeInt bits = (NativeInt)v.part[p] & 0x7fffffff;
      largest.part[p] = bits > largest.part[p] ? bits : largest.part[p];
    }
  });
  std::int32_t lanes[kLanes], most = 0;
  std::memcpy(lanes, &largest, sizeof(lanes));
  for (std::int32_t lane : lanes) most = lane > most ? lane : most;
  return most;
}

template <int kBits, typename T>
void quantize_block(const T* x, std::int64_t n, std::byte* codes, float* scale) {
  const BlockScale s = block_scale<kBits>(largest_magnitude(x, n));
  *scale = s.scale;
  if (s.inverse == 0.0F) {
    std::memset(codes, 0, static_cast<std::size_t>(CodeBytes<kBits>::of(n)));
    return;
  }
  for_vectors(n, [&](std::int64_t i, std::int64_t count) {
    store_codes<kBits>(codes + i * kBits / 8, shifted_code(load(x + i, count), Vec(s.inverse)),
                       count);
  });
}

/// One block of all parts: where the first part's codes and scale are; the next are `stride` bytes
/// further.
struct BlockParts {
  const std::byte *codes, *scale;
  std::int64_t parts, stride;
};

constexpr int kGroup = 8;  // parts whose sum stays in registers

/// term(0) + .. + term(n - 1), in tree_sum's order.
template <typename Term>
TESSERA_INLINE Vec sum_of(std::int64_t n, Term&& term) {
  const auto group = [&](std::int64_t first) {
    return small_tree_sum<kGroup>(static_cast<int>(n - first < kGroup ? n - first : kGroup),
                                  [&](int i) { return term(first + i); });
  };
  if (n <= kGroup) return group(0);
  return kernels::tree_sum(ceil_div(n, kGroup), [&](std::int64_t g) { return group(g * kGroup); });
}

template <int kBits, typename T>
void sum_block(const BlockParts& a, std::int64_t n, T* out, Write write) {
  for_vectors(n, [&](std::int64_t i, std::int64_t count) {
    const Vec sum = sum_of(a.parts, [&](std::int64_t p) {
      float scale;
      std::memcpy(&scale, a.scale + p * a.stride, sizeof(scale));
      return load_codes<kBits>(a.codes + p * a.stride + i * kBits / 8, count) * Vec(scale);
    });
    store(out + i, write == Write::add ? load(out + i, count) + sum : sum, count);
  });
}

/// body(slot, block, its first element, its number of elements) for blocks of all slots.
template <typename Body>
TESSERA_INLINE void for_blocks(const SlotLayout& layout, Range blocks, Body&& body) {
  for (std::int64_t i = blocks.begin; i < blocks.end;) {
    const std::int64_t slot = i / layout.blocks;
    for (std::int64_t k = i % layout.blocks; k < layout.blocks && i < blocks.end; ++k, ++i) {
      const std::int64_t first = k * layout.block, rest = layout.elements - first;
      body(slot, k, first, rest < layout.block ? rest : layout.block);
    }
  }
}

/// What pads a slot, cleared with its last block.
TESSERA_INLINE void clear_padding(const SlotLayout& layout, int bits, std::int64_t block,
                                  std::byte* slot) {
  if (block + 1 < layout.blocks) return;
  const std::int64_t codes = (layout.elements * bits + 7) / 8,
                     scales = layout.scales_at + 4 * layout.blocks;
  std::memset(slot + codes, 0, static_cast<std::size_t>(layout.scales_at - codes));
  std::memset(slot + scales, 0, static_cast<std::size_t>(layout.bytes - scales));
}

TESSERA_INLINE float* scales_of(const SlotLayout& layout, std::byte* slot) {
  return reinterpret_cast<float*>(slot + layout.scales_at);
}

/// Block k of slot s, of which a part has `slots`.
template <int kBits>
TESSERA_INLINE BlockParts parts_of(const View& code, const SlotLayout& layout, std::int64_t s,
                                   std::int64_t k) {
  const std::byte* slot = code.data + s * layout.bytes;
  return {.codes = slot + k * layout.block * kBits / 8,
          .scale = slot + layout.scales_at + 4 * k,
          .parts = code.shape[0],
          .stride = code.shape[1] * layout.bytes};
}

}  // namespace

void quantize(const Quantize& a, const SlotLayout& layout, Range blocks) {
  const std::int64_t a_slots = a.x.shape[0], b_slots = a.x.shape[1];
  with_type(a.x.type, [&]<typename T>() {
    with_bits(a.format.type, [&]<int kBits>() {
      const T* x = row_of<T>(a.x, 0);
      for_blocks(
          layout, blocks, [&](std::int64_t s, std::int64_t k, std::int64_t first, std::int64_t n) {
            std::byte* slot = a.code.data + (s % b_slots * a_slots + s / b_slots) * layout.bytes;
            quantize_block<kBits>(x + s * layout.elements + first, n, slot + first * kBits / 8,
                                  scales_of(layout, slot) + k);
            clear_padding(layout, kBits, k, slot);
          });
    });
  });
}

void sum_quantized(const SumQuantized& a, const SlotLayout& layout, Range blocks) {
  with_type(a.out.type, [&]<typename T>() {
    with_bits(a.format.type, [&]<int kBits>() {
      T* out = row_of<T>(a.out, 0);
      for_blocks(layout, blocks,
                 [&](std::int64_t s, std::int64_t k, std::int64_t first, std::int64_t n) {
                   sum_block<kBits>(parts_of<kBits>(a.code, layout, s, k), n,
                                    out + s * layout.elements + first, a.write);
                 });
    });
  });
}

void requantize_sum(const RequantizeSum& a, const SlotLayout& layout, Range blocks, float* sums) {
  with_bits(a.format.type, [&]<int kBits>() {
    for_blocks(
        layout, blocks, [&](std::int64_t s, std::int64_t k, std::int64_t first, std::int64_t n) {
          std::byte* slot = a.sum.data + s * layout.bytes;
          sum_block<kBits>(parts_of<kBits>(a.code, layout, s, k), n, sums, Write::overwrite);
          quantize_block<kBits>(sums, n, slot + first * kBits / 8, scales_of(layout, slot) + k);
          clear_padding(layout, kBits, k, slot);
        });
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
