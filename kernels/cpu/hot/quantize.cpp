// Loops of quantised blocks: to codes, and sums of codes.
#include "kernels/common/tree.hpp"
#include "kernels/cpu/hot/codes.hpp"
#include "kernels/cpu/hot/dropout.hpp"
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

/// Takes as much of x[0 .. n) as fills registers with bf16 as they are, and stores the signs of
/// codes of 1 bit. Returns how many elements that are.
template <int kBits>
std::int64_t take_pairs(const bf16* x, std::int64_t n, std::byte* codes,
                        LargestMagnitude& largest) {
  constexpr std::int64_t kCount = 2 * kNative;
  NativePairs most = {};
  std::int64_t i = 0;
  for (; i + kCount <= n; i += kCount) {
    NativePairs now;
    std::memcpy(&now, x + i, sizeof(now));
    if constexpr (kBits == 1) store_signs(codes + i / 8, now);
    now &= 0x7fff;
    most = now > most ? now : most;
  }
  largest.take(most);
  return i;
}

/// The bits of the largest |x|. Stores the signs of codes of 1 bit.
template <int kBits, typename T>
std::int32_t first_look(const T* x, std::int64_t n, std::byte* codes) {
  LargestMagnitude largest;
  std::int64_t first = 0;
  if constexpr (std::is_same_v<T, bf16>) first = take_pairs<kBits>(x, n, codes, largest);
  for_vectors(
      n - first, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        const Vec v = load(x + first + i, count);
        if constexpr (kBits == 1) store_signs(codes + (first + i) / 8, v, count);
        largest.take(v);
      });
  return largest.bits();
}

/// What error feedback keeps of a block; `values` is null without it.
struct Lost {
  bf16* values = nullptr;
  float unscale = 1;
};

/// The scale of a block; of signs, not that of the integers but of their mean.
template <int kBits, typename T>
BlockScale scale_of(const T* x, std::int64_t n, std::int32_t largest) {
  const BlockScale s = block_scale<kBits>(largest);
  if (kBits > 1 || s.inverse == 0.0F) return s;
  CodeSum sum;
  for_vectors(
      n, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        sum.take(shifted_code(magnitude_of(load(x + i, count)), Vec(s.inverse)));
      });
  return {sign_scale(s, sum.total(), n), s.inverse};
}

/// `offsets` are of rounding at random, or null.
template <int kBits, typename T>
void quantize_block(const T* x, std::int64_t n, std::byte* codes, std::byte* scale,
                    const float* offsets = nullptr, const Lost& lost = {}) {
  const BlockScale s = scale_of<kBits>(x, n, first_look<kBits>(x, n, codes));
  store_scale<kBits>(scale, s.scale);
  const auto keep = [&](std::int64_t i, std::int64_t count, const Vec& value)
      __attribute__((always_inline)) {
    store(lost.values + i, lost_of(load(x + i, count), value, Vec(lost.unscale)), count);
  };
  if (s.inverse == 0.0F) {  // all values are the scale: 0, or not-a-number
    std::memset(codes, 0, static_cast<std::size_t>(code_bytes<kBits>(n)));
    if (lost.values == nullptr) return;
    for_vectors(
        n, [&](std::int64_t i, std::int64_t count)
               __attribute__((always_inline)) { keep(i, count, Vec(s.scale)); });
    return;
  }
  if (kBits == 1 && lost.values == nullptr) return;
  for_vectors(
      n, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        const Vec v = load(x + i, count);
        if constexpr (kBits == 1) {
          keep(i, count, signed_like(Vec(s.scale), v));
        } else {
          const Vec inverse(s.inverse);
          const Vec shifted = offsets == nullptr
                                  ? shifted_code(v, inverse)
                                  : shifted_code<kBits>(v, inverse, load(offsets + i, count));
          store_codes<kBits>(codes + i * kBits / 8, shifted, count);
          if (lost.values != nullptr) keep(i, count, value_of(shifted, Vec(s.scale)));
        }
      });
}

/// The random numbers of a call, block by block.
class Offsets {
 public:
  /// `numbers` holds a block's numbers, and behind them what chance adds to them.
  Offsets(const Chance& chance, std::int64_t block, float* numbers)
      : rule_(chance ? chance_rule(chance) : ChanceRule{}),
        sample_(chance ? *chance.samples.as<std::int64_t>() : 0),
        room_(chance ? numbers + block : nullptr) {}

  /// Of elements first .. first + n of a slot; null where nothing is left to chance.
  const float* of(std::int64_t slot, std::int64_t first, std::int64_t n) const {
    if (room_ == nullptr) return nullptr;
    for_random_bits(rule_.key, static_cast<std::uint64_t>(sample_), rule_.element(slot, first), n,
                    [&](std::int64_t i, std::uint32_t bits) { room_[i] = random_offset(bits); });
    return room_;
  }

 private:
  ChanceRule rule_;
  std::int64_t sample_;
  float* room_;
};

/// The error feedback of a call, block by block.
class Feedback {
 public:
  template <typename Call>
  explicit Feedback(const Call& a) : error_(a.error ? a.error : a.lost), lost_(a.lost) {
    if (*this) unscale_ = row_of<float>(a.scalars, 0)[static_cast<int>(StepScalar::unscale)];
  }
  explicit operator bool() const { return static_cast<bool>(lost_); }

  /// Numbers x of elements first .. first + n of a slot with what earlier roundings lost of them;
  /// `out` may be x.
  template <typename T>
  void add(const T* x, std::int64_t slot, std::int64_t first, std::int64_t n, float* out) const {
    const bf16* error = row_of<bf16>(error_, slot) + first;
    const Vec scale(1.0F / unscale_);
    for_vectors(
        n, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
          store(out + i, load(x + i, count) + load(error + i, count) * scale, count);
        });
  }
  Lost lost(std::int64_t slot, std::int64_t first) const {
    return *this ? Lost{row_of<bf16>(lost_, slot) + first, unscale_} : Lost{};
  }

 private:
  View error_, lost_;
  float unscale_ = 1;
};

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
template <BlockType kType, int kMost>
TESSERA_INLINE Vec sum_of_parts(const BlockParts& a, std::int64_t i, std::int64_t count) {
  constexpr int kBits = kBitsOf<kType>;
  const auto term = [&](std::int64_t p) __attribute__((always_inline)) {
    return load_values<kType>(a.codes + p * a.stride + i * kBits / 8,
                              Vec(load_scale<kBits>(a.scale + p * a.stride)), count);
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

template <BlockType kType, int kMost, typename T>
TESSERA_INLINE void sum_block(const BlockParts& a, std::int64_t n, T* out, Write write) {
  for_vectors(
      n, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        const Vec sum = sum_of_parts<kType, kMost>(a, i, count);
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
                     scales = scale_at<kBits>(layout, layout.blocks);
  std::memset(slot + codes, 0, static_cast<std::size_t>(layout.scales_at - codes));
  std::memset(slot + scales, 0, static_cast<std::size_t>(layout.bytes - scales));
}

/// Block k of slot s, of which a part has `slots`.
template <int kBits>
TESSERA_INLINE BlockParts parts_of(const View& code, const SlotLayout& layout, std::int64_t s,
                                   std::int64_t k) {
  const std::byte* slot = code.data + s * layout.bytes;
  return {.codes = slot + k * layout.block * kBits / 8,
          .scale = slot + scale_at<kBits>(layout, k),
          .parts = code.shape[0],
          .stride = code.shape[1] * layout.bytes};
}

}  // namespace

void quantize(const Quantize& a, const SlotLayout& layout, Range blocks, float* numbers) {
  const std::int64_t a_slots = a.x.shape[0], b_slots = a.x.shape[1];
  const Offsets offsets(a.chance, layout.block, numbers);
  const Feedback feedback(a);
  with_type(a.x.type, [&]<typename T>() {
    with_bits(a.format.type, [&]<int kBits>() {
      for_blocks(
          layout, blocks, [&](std::int64_t s, std::int64_t k, std::int64_t first, std::int64_t n) {
            std::byte* slot = a.code.data + (s % b_slots * a_slots + s / b_slots) * layout.bytes;
            std::byte *codes = slot + first * kBits / 8, *scale = slot + scale_at<kBits>(layout, k);
            const T* x = row_of<T>(a.x, s) + first;
            const float* by_chance = offsets.of(s, first, n);
            if (feedback) {
              feedback.add(x, s, first, n, numbers);
              quantize_block<kBits>(numbers, n, codes, scale, by_chance, feedback.lost(s, first));
            } else {
              quantize_block<kBits>(x, n, codes, scale, by_chance);
            }
            clear_padding<kBits>(layout, k, slot);
          });
    });
  });
}

void sum_quantized(const SumQuantized& a, const SlotLayout& layout, Range blocks) {
  with_type(a.out.type, [&]<typename T>() {
    with_block_type(a.format.type, [&]<BlockType kType>() {
      const auto sum = [&]<int kMost>() {
        for_blocks(layout, blocks,
                   [&](std::int64_t s, std::int64_t k, std::int64_t first, std::int64_t n) {
                     sum_block<kType, kMost>(parts_of<kBitsOf<kType>>(a.code, layout, s, k), n,
                                             row_of<T>(a.out, s) + first, a.write);
                   });
      };
      if constexpr (kType == BlockType::nf4) {
        sum.template operator()<1>();
      } else {
        with_parts(a.code.shape[0], sum);
      }
    });
  });
}

void requantize_sum(const RequantizeSum& a, const SlotLayout& layout, Range blocks,
                    float* numbers) {
  const Offsets offsets(a.chance, layout.block, numbers);
  const Feedback feedback(a);
  with_bits(a.format.type, [&]<int kBits>() {
    with_parts(a.code.shape[0], [&]<int kMost>() {
      for_blocks(layout, blocks,
                 [&](std::int64_t s, std::int64_t k, std::int64_t first, std::int64_t n) {
                   std::byte* slot = a.sum.data + s * layout.bytes;
                   sum_block<kRoundedType<kBits>, kMost>(parts_of<kBits>(a.code, layout, s, k), n,
                                                         numbers, Write::overwrite);
                   if (feedback) feedback.add(numbers, s, first, n, numbers);
                   quantize_block<kBits>(numbers, n, slot + first * kBits / 8,
                                         slot + scale_at<kBits>(layout, k), offsets.of(s, first, n),
                                         feedback.lost(s, first));
                   clear_padding<kBits>(layout, k, slot);
                 });
    });
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
