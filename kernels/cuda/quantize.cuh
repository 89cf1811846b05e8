// Blocks of elements in 8, 4 bits or 1: a warp has a block, or 256 threads a large one, and keeps
// its elements in registers between their largest magnitude and their codes. Blocks too large for
// that are read, or summed, twice; for signs thrice.
#pragma once

#include "kernels/common/quantize.hpp"
#include "kernels/common/tree.hpp"
#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/scratch.hpp"
#include "kernels/cuda/team.cuh"

namespace tessera::kernels::cuda {

/// Threads of a kernel's block at most, and the team of a small block of elements.
inline constexpr int kBlockThreads = 256;
inline constexpr Team kWarpTeam{32};

/// Elements of a run: signs fill a byte at least.
template <typename T, int kBits>
inline constexpr int kCodeRun = kBits == 1 ? 8 : kRun<T>;

/// What a code of nf4, the low bits, stands for, of those from kFirst on that its lower bits tell
/// apart, kHalf of them and as many: chosen, for registers have no indices.
template <int kHalf = 8, int kFirst = 0>
__device__ __forceinline__ float normal_float(std::uint32_t code) {
  if constexpr (kHalf == 0) {
    constexpr float kNumber = normal_floats().of[kFirst];
    return kNumber;
  } else {
    const float low = normal_float<kHalf / 2, kFirst>(code),
                high = normal_float<kHalf / 2, kFirst + kHalf>(code);
    return (code & static_cast<std::uint32_t>(kHalf)) != 0 ? high : low;
  }
}

/// V neighbouring codes, in the low bits of their words; the first begins at a whole byte.
template <int kBits, int V>
struct CodeRun {
  static constexpr int kPerWord = 32 / kBits, kWords = (V + kPerWord - 1) / kPerWord;
  static constexpr int kBytes = V * kBits / 8;
  std::uint32_t word[kWords];

  __device__ __forceinline__ void fill(std::uint32_t bits) {
#pragma unroll
    for (auto& w : word) w = bits;
  }
  /// All of them, at once.
  __device__ __forceinline__ void read(const std::byte* p) {
    if constexpr (kBytes == 1) {
      word[0] = std::to_integer<std::uint32_t>(*p);
    } else if constexpr (kBytes == 2) {
      word[0] = *reinterpret_cast<const std::uint16_t*>(p);
    } else if constexpr (kBytes == 4) {
      word[0] = *reinterpret_cast<const std::uint32_t*>(p);
    } else {
      const uint2 w = *reinterpret_cast<const uint2*>(p);
      word[0] = w.x, word[1] = w.y;
    }
  }
  /// The first `count` codes, byte by byte; those beyond are 0.
  __device__ __forceinline__ void read(const std::byte* p, int count) {
    std::uint64_t all = 0;
#pragma unroll 1
    for (int i = (count * kBits + 7) / 8; i-- > 0;)
      all = all << 8 | std::to_integer<std::uint64_t>(p[i]);
    word[0] = static_cast<std::uint32_t>(all);
    if constexpr (kWords > 1) word[1] = static_cast<std::uint32_t>(all >> 32);
  }
  __device__ __forceinline__ void write(std::byte* p, int count, bool wide) const {
    if (wide && count >= V) {
      if constexpr (kBytes == 1) {
        *p = static_cast<std::byte>(word[0]);
      } else if constexpr (kBytes == 2) {
        *reinterpret_cast<std::uint16_t*>(p) = static_cast<std::uint16_t>(word[0]);
      } else if constexpr (kBytes == 4) {
        *reinterpret_cast<std::uint32_t*>(p) = word[0];
      } else {
        *reinterpret_cast<uint2*>(p) = make_uint2(word[0], word[1]);
      }
      return;
    }
    std::uint64_t all = word[0];
    if constexpr (kWords > 1) all |= static_cast<std::uint64_t>(word[1]) << 32;
#pragma unroll 1
    for (int i = 0; i * 8 < count * kBits; ++i, all >>= 8)
      p[i] = static_cast<std::byte>(all & 0xffU);
  }

  /// The codes of shifted_code's numbers.
  __device__ __forceinline__ void set(const float (&shifted)[V]) {
    constexpr std::uint32_t kMask = (1U << kBits) - 1;
    fill(0);
#pragma unroll
    for (int i = 0; i < V; ++i)
      word[i / kPerWord] |= (std::bit_cast<std::uint32_t>(shifted[i]) & kMask)
                            << i % kPerWord * kBits;
  }
  /// The signs of these numbers, into codes that are 0.
  __device__ __forceinline__ void set_signs(const float (&x)[V]) {
#pragma unroll
    for (int i = 0; i < V; ++i) word[0] |= std::bit_cast<std::uint32_t>(x[i]) >> (31 - i) & 1U << i;
  }
  /// What code i stands for.
  template <BlockType kType = kRoundedType<kBits>>
  __device__ __forceinline__ float value(int i, float scale) const {
    if constexpr (kType == BlockType::nf4) {
      return normal_float(word[i / kPerWord] >> i % kPerWord * kBits) * scale;
    } else if constexpr (kBits == 1) {
      return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scale) ^
                                  (word[0] << (31 - i) & 0x80000000U));
    } else {
      return number(i) * scale;
    }
  }

 private:
  /// Code i as a number: its byte is moved into the mantissa of 2^23 by one instruction, where an
  /// integer's conversion would take one of the slow ones.
  __device__ __forceinline__ float number(int i) const {
    constexpr std::uint32_t kSigns = kBits == 8 ? 0x80808080U : 0x88888888U;
    constexpr auto kZero = static_cast<float>((1 << 23) + (1 << (kBits - 1)));
    std::uint32_t bytes = word[i / kPerWord] ^ kSigns;
    if constexpr (kBits == 4) bytes = bytes >> i % 2 * 4 & 0x0f0f0f0fU;
    const auto byte = static_cast<std::uint32_t>(i % kPerWord * kBits / 8);
    return std::bit_cast<float>(__byte_perm(bytes, 0x4b000000U, 0x7540U | byte)) - kZero;
  }
};

template <int V>
struct Floats {
  float v[V];
  friend __device__ __forceinline__ Floats operator+(const Floats& a, const Floats& b) {
    Floats sum;
#pragma unroll
    for (int i = 0; i < V; ++i) sum.v[i] = a.v[i] + b.v[i];
    return sum;
  }
};

/// A block of a slot: which elements it has.
struct BlockPlace {
  std::int64_t slot, block, first, count;
};

/// Which block of which slot block i is, counted over all slots.
__device__ __forceinline__ BlockPlace block_place(const SlotLayout& layout, std::int64_t i) {
  const std::int64_t slot = quotient(i, layout.blocks), block = i - slot * layout.blocks,
                     first = block * layout.block, rest = layout.elements - first;
  return {slot, block, first, rest < layout.block ? rest : layout.block};
}

/// The block's scale, and what pads its slot after the last block.
template <int kBits>
__device__ __forceinline__ void finish_block(const Team& team, const SlotLayout& layout,
                                             const BlockPlace& at, float scale, std::byte* slot) {
  if (team.lane() == 0) store_scale<kBits>(slot + scale_at<kBits>(layout, at.block), scale);
  if (at.block + 1 < layout.blocks) return;
  const std::int64_t codes = (layout.elements * kBits + 7) / 8 + team.lane(),
                     scales = scale_at<kBits>(layout, layout.blocks) + team.lane();
  if (codes < layout.scales_at) slot[codes] = std::byte{};  // at most 15 bytes each
  if (scales < layout.bytes) slot[scales] = std::byte{};
}

template <int V>
__device__ __forceinline__ std::int32_t largest_of(const float (&x)[V], std::int32_t most) {
#pragma unroll
  for (int i = 0; i < V; ++i) most = magnitude(x[i]) > most ? magnitude(x[i]) : most;
  return most;
}

/// The sum of the integers that the mean of signs is of.
template <int V>
__device__ __forceinline__ std::int32_t sum_of_magnitudes(const float (&x)[V], float inverse) {
  std::int32_t sum = 0;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const auto size = std::bit_cast<float>(magnitude(x[i]));
    sum += std::bit_cast<std::int32_t>(shifted_code(size, inverse)) -
           std::bit_cast<std::int32_t>(kRoundToInt);
  }
  return sum;
}

/// Random numbers of roundings; `samples` is null where nothing is left to chance.
struct Offsets {
  ChanceRule rule;
  const std::int64_t* samples = nullptr;
};
inline Offsets offsets_of(const Chance& chance) {
  if (!chance) return {};
  return {.rule = chance_rule(chance),
          .samples = reinterpret_cast<const std::int64_t*>(chance.samples.data)};
}

/// shifted_code of elements c .. c + V of a slot.
template <int kBits, int V>
__device__ __forceinline__ void shifted_codes(const Offsets& offsets, std::int64_t slot,
                                              std::int64_t c, const float (&x)[V], float inverse,
                                              float (&shifted)[V]) {
  std::uint32_t bits[V] = {};
  if (offsets.samples != nullptr && inverse != 0.0F) {
    random_run(offsets.rule.key, static_cast<std::uint64_t>(*offsets.samples),
               static_cast<std::uint64_t>(offsets.rule.element(slot, c)), bits);
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    shifted[i] = inverse == 0.0F ? kRoundToInt
                 : offsets.samples == nullptr
                     ? shifted_code(x[i], inverse)
                     : shifted_code<kBits>(x[i], inverse, random_offset(bits[i]));
  }
}

/// What roundings lose; absent without error feedback.
struct Errors {
  Rows<const bf16> error;  // (slots, elements), of earlier roundings
  Rows<bf16> lost;
  const float* scalars = nullptr;
  __device__ __forceinline__ bool kept() const { return lost.data != nullptr; }
  __device__ __forceinline__ float unscale() const {
    return scalars[static_cast<int>(StepScalar::unscale)];
  }
};

/// What a team makes of a block's numbers.
struct QuantizedBlock {
  const Team& team;
  const SlotLayout& layout;
  const BlockPlace& at;
  const Errors& errors;
  const Offsets& offsets;
  std::byte* slot;
  bool wide;

  /// The scale of signs of these numbers, which numbers(k, c, count) makes again where they are not
  /// kept.
  template <int V, int kRuns, typename Numbers>
  __device__ __forceinline__ float mean_of(const float (&x)[kRuns > 0 ? kRuns : 1][V],
                                           const BlockScale& integers, Numbers&& numbers) const {
    __shared__ std::int32_t partial[Team::kMostWarps];
    std::int32_t sum = 0;
    team.template each_run<V, kRuns>(at.count, [&](int k, std::int64_t c, int count) {
      if (kRuns == 0) numbers(k, c, count);
      sum += sum_of_magnitudes(x[k], integers.inverse);
    });
    return sign_scale(integers, team.sum(sum, partial), at.count);
  }

  /// Codes and scale of the numbers that read(c, count, x) says of columns c .. c + count, beyond
  /// which they are 0; what is kept in kRuns runs is read once.
  template <int kBits, int V, int kRuns, typename Read>
  __device__ __forceinline__ void make(Read&& read) const {
    __shared__ std::int32_t partial[Team::kMostWarps];
    float x[kRuns > 0 ? kRuns : 1][V];
    const auto numbers = [&](int k, std::int64_t c, int count) {
      read(c, count, x[k]);
      if (!errors.kept()) return;
      const float scale = 1.0F / errors.unscale();
      float error[V];
      load(errors.error[at.slot] + at.first + c, count, wide, error);
#pragma unroll
      for (int i = 0; i < V; ++i) x[k][i] = x[k][i] + error[i] * scale;
    };
    std::int32_t largest = 0;
    team.template each_run<V, kRuns>(at.count, [&](int k, std::int64_t c, int count) {
      numbers(k, c, count);
      largest = largest_of(x[k], largest);
    });
    BlockScale s = block_scale<kBits>(team.max(largest, partial));
    if constexpr (kBits == 1) {
      if (s.inverse != 0.0F) s.scale = mean_of<V, kRuns>(x, s, numbers);
    }
    team.template each_run<V, kRuns>(at.count, [&](int k, std::int64_t c, int count) {
      if (kRuns == 0) numbers(k, c, count);
      float value[V];
      CodeRun<kBits, V> run;
      if constexpr (kBits == 1) {
        run.fill(0);
        if (s.inverse != 0.0F) run.set_signs(x[k]);
#pragma unroll
        for (int i = 0; i < V; ++i) value[i] = run.value(i, s.scale);
      } else {
        shifted_codes<kBits>(offsets, at.slot, at.first + c, x[k], s.inverse, value);
        run.set(value);
#pragma unroll
        for (int i = 0; i < V; ++i) value[i] = value_of(value[i], s.scale);
      }
      run.write(slot + (at.first + c) * kBits / 8, count, wide);
      if (!errors.kept()) return;
#pragma unroll
      for (int i = 0; i < V; ++i) value[i] = lost_of(x[k][i], value[i], errors.unscale());
      store(errors.lost[at.slot] + at.first + c, count, wide, value);
    });
    finish_block<kBits>(team, layout, at, s.scale, slot);
  }
};

template <typename T>
struct QuantizeSlots {
  Rows<const T> x;  // (A, B, elements)
  std::byte* code;
  Errors errors;
  Offsets offsets;
  std::int64_t a_slots, b_slots;
  SlotLayout layout;
  Team team;  // of a block of elements
  bool wide;
};

/// Blocks of threads that a multiprocessor holds at once, said to the compiler for signs, where it
/// else spills a few registers to hold more; 0 leaves it the choice.
template <int kBits>
inline constexpr int kQuantizeBlocks = kBits == 1 ? 4 : 0;

template <typename T, int kBits, int kRuns>
__global__ void __launch_bounds__(kBlockThreads, kQuantizeBlocks<kBits>)
    quantize_kernel(QuantizeSlots<T> a) {
  const Team& team = a.team;
  const std::int64_t index = std::int64_t{blockIdx.x} * team.per_block() + team.index();
  if (index >= a.a_slots * a.b_slots * a.layout.blocks) return;  // a whole warp
  const BlockPlace at = block_place(a.layout, index);
  const std::int64_t of_a = quotient(at.slot, a.b_slots), of_b = at.slot - of_a * a.b_slots;
  const T* from = a.x[at.slot] + at.first;
  const QuantizedBlock block{.team = team,
                             .layout = a.layout,
                             .at = at,
                             .errors = a.errors,
                             .offsets = a.offsets,
                             .slot = a.code + (of_b * a.a_slots + of_a) * a.layout.bytes,
                             .wide = a.wide};
  block.template make<kBits, kCodeRun<T, kBits>, kRuns>(
      [&](std::int64_t c, int count, auto& x) { load(from + c, count, a.wide, x); });
}

struct CodeParts {
  const std::byte* code;  // (parts, slots, bytes)
  std::int64_t parts, slots;
  SlotLayout layout;
  bool wide;
};

/// One block of all parts: the first part's codes and scale; the next are `stride` bytes further.
struct BlockParts {
  const std::byte *codes, *scale;
  std::int64_t stride, parts;
  bool wide;
};

template <int kBits>
__device__ __forceinline__ BlockParts block_parts(const CodeParts& a, const BlockPlace& at) {
  const std::byte* slot = a.code + at.slot * a.layout.bytes;
  return {.codes = slot + at.first * kBits / 8,
          .scale = slot + scale_at<kBits>(a.layout, at.block),
          .stride = a.slots * a.layout.bytes,
          .parts = a.parts,
          .wide = a.wide};
}

/// `count` elements from column c on, added up over n <= kMost parts from `first` on, all on their
/// way at once. A part that is missing has -1 times 0 for every element: -0 changes no sum. What
/// signs say beyond `count` is not 0.
template <BlockType kType, int V, int kMost>
__device__ __forceinline__ Floats<V> sum_of_few(const BlockParts& a, std::int64_t c, int count,
                                                std::int64_t first, std::int64_t n) {
  constexpr int kBits = kBitsOf<kType>;
  CodeRun<kBits, V> run[kMost];
  float scale[kMost];
  const std::byte* codes = a.codes + first * a.stride + c * kBits / 8;
  const std::byte* scales = a.scale + first * a.stride;
  const auto each_part = [&](auto&& read) {
#pragma unroll
    for (int p = 0; p < kMost; ++p) {
      run[p].fill(0xffffffffU), scale[p] = 0;
      if (p >= n) continue;
      read(run[p], codes + p * a.stride);
      scale[p] = load_scale<kBits>(scales + p * a.stride);
    }
  };
  if (a.wide && count >= V) {
    each_part([](CodeRun<kBits, V>& r, const std::byte* p) { r.read(p); });
  } else {
    each_part([&](CodeRun<kBits, V>& r, const std::byte* p) { r.read(p, count); });
  }
  Floats<V> sum;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    sum.v[i] = small_tree_sum<kMost>(
        kMost, [&](int p) { return run[p].template value<kType>(i, scale[p]); });
  }
  return sum;
}

/// Parts whose codes are on their way at once, and the levels of a tree over such groups.
inline constexpr int kPartGroup = 8, kGroupLevels = 9;
static_assert(kMostCodeParts == kPartGroup * ((std::int64_t{1} << kGroupLevels) - 1));

/// Blocks of so many threads of a kernel of sums for at most kMost parts that a multiprocessor
/// holds at once, so many that there are registers for what is on its way. Said to the compiler,
/// which else spills a few to hold more.
template <int kMost, int kThreads>
inline constexpr int kSumBlocks = (kMost > 0 ? 640 : 256) / kThreads;

/// The same over all parts: kMost at most, or any number for 0.
template <BlockType kType, int V, int kMost>
__device__ __forceinline__ Floats<V> sum_of_parts(const BlockParts& a, std::int64_t c, int count) {
  if constexpr (kMost > 0) {
    return sum_of_few<kType, V, kMost>(a, c, count, 0, a.parts);
  } else {
    return tree_sum<kGroupLevels>(ceil_div(a.parts, kPartGroup), [&](std::int64_t g) {
      const std::int64_t first = g * kPartGroup;
      return sum_of_few<kType, V, kPartGroup>(a, c, count, first, a.parts - first);
    });
  }
}

template <typename T>
struct SumQuantizedSlots {
  CodeParts parts;
  Rows<T> out;  // (slots, elements)
  bool add, wide;
};

template <typename T, BlockType kType, int kMost>
__global__ void __launch_bounds__(kWarpTeam.block(), (kSumBlocks<kMost, kWarpTeam.block()>))
    sum_quantized_kernel(SumQuantizedSlots<T> a) {
  constexpr int kBits = kBitsOf<kType>;
  constexpr int V = kCodeRun<T, kBits>;
  constexpr Team team = kWarpTeam;
  const SlotLayout& layout = a.parts.layout;
  const std::int64_t index = std::int64_t{blockIdx.x} * team.per_block() + team.index();
  if (index >= a.parts.slots * layout.blocks) return;
  const BlockPlace at = block_place(layout, index);
  const BlockParts parts = block_parts<kBits>(a.parts, at);
  T* out = a.out[at.slot] + at.first;
  team.each_run<V, 0>(at.count, [&](int, std::int64_t c, int count) {
    Floats<V> sum = sum_of_parts<kType, V, kMost>(parts, c, count);
    if (a.add) {
      Floats<V> before;
      load(out + c, count, a.wide, before.v);
      sum = before + sum;
    }
    store(out + c, count, a.wide, sum.v);
  });
}

struct RequantizeSlots {
  static constexpr int V = 8;
  CodeParts parts;
  std::byte* sum;  // (slots, bytes)
  Errors errors;
  Offsets offsets;
  Team team;  // of a block of elements
};

template <int kBits, int kMost, int kRuns>
__global__ void __launch_bounds__(kBlockThreads, (kSumBlocks<kMost, kBlockThreads>))
    requantize_sum_kernel(RequantizeSlots a) {
  constexpr int V = RequantizeSlots::V;
  const Team& team = a.team;
  const SlotLayout& layout = a.parts.layout;
  const std::int64_t index = std::int64_t{blockIdx.x} * team.per_block() + team.index();
  if (index >= a.parts.slots * layout.blocks) return;
  const BlockPlace at = block_place(layout, index);
  const BlockParts parts = block_parts<kBits>(a.parts, at);
  const QuantizedBlock block{.team = team,
                             .layout = layout,
                             .at = at,
                             .errors = a.errors,
                             .offsets = a.offsets,
                             .slot = a.sum + at.slot * layout.bytes,
                             .wide = parts.wide};
  block.template make<kBits, V, kRuns>([&](std::int64_t c, int count, float(&x)[V]) {
    const Floats<V> sum = sum_of_parts<kRoundedType<kBits>, V, kMost>(parts, c, count);
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] = kBits == 1 && i >= count ? 0.0F : sum.v[i];
  });
}

}  // namespace tessera::kernels::cuda
