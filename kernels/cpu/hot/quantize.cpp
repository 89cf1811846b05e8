// Loops of quantised blocks: to codes, and sums of codes.
#include "kernels/common/tree.hpp"
#include "kernels/cpu/hot/codes.hpp"
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

template <typename T>
std::int32_t largest_magnitude(const T* x, std::int64_t n) {
  LargestMagnitude largest;
  for_vectors(n, [&](std::int64_t i, std::int64_t count) { largest.take(load(x + i, count)); });
  return largest.bits();
}

template <int kBits, typename T>
void quantize_block(const T* x, std::int64_t n, std::byte* codes, float* scale) {
  const BlockScale s = block_scale<kBits>(largest_magnitude(x, n));
  *scale = s.scale;
  if (s.inverse == 0.0F) {
    std::memset(codes, 0, static_cast<std::size_t>(code_bytes<kBits>(n)));
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

/// f.operator()<kMost>() for the number of parts that a loop is made for; 0 is any.
template <typename F>
TESSERA_INLINE void with_parts(std::int64_t parts, F&& f) {
  if (parts == 1) {
    f.template operator()<1>();
  } else if (parts <= kGroup) {
    f.template operator()<kGroup>();
  } else {
    f.template operator()<0>();
  }
}

/// Elements i .. i + count, added up over the parts. What is called several times is inlined by
/// force: numbers stay in registers.
template <int kBits, int kMost>
TESSERA_INLINE Vec sum_of_parts(const BlockParts& a, std::int64_t i, std::int64_t count) {
  const auto term = [&](std::int64_t p) __attribute__((always_inline)) {
    float scale;
    std::memcpy(&scale, a.scale + p * a.stride, sizeof(scale));
    return load_codes<kBits>(a.codes + p * a.stride + i * kBits / 8, count) * Vec(scale);
  };
  if constexpr (kMost > 0) {
    return small_tree_sum<kMost>(static_cast<int>(a.parts), term);
  } else {
    return kernels::tree_sum(ceil_div(a.parts, kGroup), [&](std::int64_t g) {
      const std::int64_t first = g * kGroup, rest = a.parts - first;
      return small_tree_sum<kGroup>(
          static_cast<int>(rest < kGroup ? rest : kGroup), [&](int p)
                                                               __attribute__((always_inline)) {
                                                                 return term(first + p);
                                                               });
    });
  }
}

template <int kBits, int kMost, typename T>
TESSERA_INLINE void sum_block(const BlockParts& a, std::int64_t n, T* out, Write write) {
  for_vectors(
      n, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        const Vec sum = sum_of_parts<kBits, kMost>(a, i, count);
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
template <int kBits>
TESSERA_INLINE void clear_padding(const SlotLayout& layout, std::int64_t block, std::byte* slot) {
  if (block + 1 < layout.blocks) return;
  const std::int64_t codes = code_bytes<kBits>(layout.elements),
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
            clear_padding<kBits>(layout, k, slot);
          });
    });
  });
}

void sum_quantized(const SumQuantized& a, const SlotLayout& layout, Range blocks) {
  with_type(a.out.type, [&]<typename T>() {
    with_bits(a.format.type, [&]<int kBits>() {
      with_parts(a.code.shape[0], [&]<int kMost>() {
        T* out = row_of<T>(a.out, 0);
        for_blocks(layout, blocks,
                   [&](std::int64_t s, std::int64_t k, std::int64_t first, std::int64_t n) {
                     sum_block<kBits, kMost>(parts_of<kBits>(a.code, layout, s, k), n,
                                             out + s * layout.elements + first, a.write);
                   });
      });
    });
  });
}

void requantize_sum(const RequantizeSum& a, const SlotLayout& layout, Range blocks, float* sums) {
  with_bits(a.format.type, [&]<int kBits>() {
    with_parts(a.code.shape[0], [&]<int kMost>() {
      for_blocks(
          layout, blocks, [&](std::int64_t s, std::int64_t k, std::int64_t first, std::int64_t n) {
            std::byte* slot = a.sum.data + s * layout.bytes;
            sum_block<kBits, kMost>(parts_of<kBits>(a.code, layout, s, k), n, sums,
                                    Write::overwrite);
            quantize_block<kBits>(sums, n, slot + first * kBits / 8, scales_of(layout, slot) + k);
            clear_padding<kBits>(layout, k, slot);
          });
    });
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
