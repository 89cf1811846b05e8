// Dropout factors for runs of elements of a (B, T, C) tensor.
#pragma once

#include "kernels/common/dropout.hpp"
#include "kernels/cuda/vec.cuh"

namespace tessera::kernels::cuda {

/// random_bits of V consecutive indices: four come from one block of Philox. Registers have no
/// indices, so that a run which begins within a block is shifted by selecting.
template <int V>
__device__ __forceinline__ void random_run(RandomKey key, std::uint64_t stream, std::uint64_t index,
                                           std::uint32_t (&bits)[V]) {
  const auto skip = static_cast<int>(index % 4);
  std::uint32_t all[V + 4];
#pragma unroll
  for (int b = 0; b < V / 4 + 1; ++b) {
    const std::uint64_t at = index / 4 + static_cast<std::uint64_t>(b);
    std::array<std::uint32_t, 4> four{};
    if (b < V / 4 || skip != 0) four = random_block(key, stream, at);
#pragma unroll
    for (int i = 0; i < 4; ++i) all[4 * b + i] = four[static_cast<std::size_t>(i)];
  }
#pragma unroll
  for (int i = 0; i < V; ++i)
    bits[i] = skip == 0 ? all[i] : skip == 1 ? all[i + 1] : skip == 2 ? all[i + 2] : all[i + 3];
}

/// That of four words, which registers have no index for.
__device__ __forceinline__ std::uint32_t pick(int i, std::uint32_t a, std::uint32_t b,
                                              std::uint32_t c, std::uint32_t d) {
  const std::uint32_t low = i % 2 == 0 ? a : b, high = i % 2 == 0 ? c : d;
  return i < 2 ? low : high;
}

/// random_half of V consecutive indices, V at most eight: these come from one block of Philox, or
/// two where the run begins within one.
template <int V>
__device__ __forceinline__ void random_halves(RandomKey key, std::uint64_t stream,
                                              std::uint64_t index, std::uint32_t (&halves)[V]) {
  static_assert(V % 2 == 0 && V <= 8);
  const auto skip = static_cast<int>(index % 8);
  const auto first = random_block(key, stream, index / 8);
  std::array<std::uint32_t, 4> second{};
  if (skip + V > 8) second = random_block(key, stream, index / 8 + 1);
  const std::uint32_t all[8] = {first[0],  first[1],  first[2],  first[3],
                                second[0], second[1], second[2], second[3]};
  std::uint32_t words[V / 2 + 1];
#pragma unroll
  for (int i = 0; i < V / 2 + 1; ++i)
    words[i] = pick(skip / 2, all[i], all[i + 1], all[i + 2], i + 3 < 8 ? all[i + 3] : 0);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const std::uint32_t even = i % 2 == 0 ? words[i / 2] & 0xffffU : words[i / 2] >> 16,
                        odd = i % 2 == 0 ? words[i / 2] >> 16 : words[i / 2 + 1] & 0xffffU;
    halves[i] = skip % 2 == 0 ? even : odd;
  }
}

/// `samples` is null where nothing is dropped.
struct DropoutMask {
  DropoutRule rule;
  const std::int64_t* samples = nullptr;
  std::int64_t tokens = 1, columns = 0;

  /// x[i] becomes 0 or a multiple of itself, which may be by jitter: columns c .. c + V of a row.
  template <bool kJitter = false, int V>
  __device__ __forceinline__ void apply(std::int64_t row, std::int64_t c, float (&x)[V]) const {
    if (samples == nullptr) return;
    const std::int64_t sample = quotient(row, tokens);
    const std::int64_t element = rule.first + (row - sample * tokens) * columns + c;
    const auto stream = static_cast<std::uint64_t>(samples[sample]),
               index = static_cast<std::uint64_t>(element);
    std::uint32_t bits[V];
    if constexpr (kJitter) {
      random_run(rule.key, stream, index, bits);
#pragma unroll
      for (int i = 0; i < V; ++i) x[i] = x[i] * jitter_of(rule, bits[i]);
    } else {
      random_halves(rule.key, stream, index, bits);
#pragma unroll
      for (int i = 0; i < V; ++i) x[i] = x[i] * (bits[i] >= rule.threshold ? rule.factor : 0.0F);
    }
  }
};

/// The mask of a tensor with `tokens` rows of `columns` elements a sample.
inline DropoutMask dropout_mask(const Dropout& dropout, std::int64_t tokens, std::int64_t columns) {
  if (!dropout) return {};
  return {.rule = dropout_rule(dropout),
          .samples = reinterpret_cast<const std::int64_t*>(dropout.samples.data),
          .tokens = tokens,
          .columns = columns};
}

}  // namespace tessera::kernels::cuda
