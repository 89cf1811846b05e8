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
    if (b < V / 4 || skip != 0) {
      four =
          philox4x32({static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32),
                      static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                     key);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) all[4 * b + i] = four[static_cast<std::size_t>(i)];
  }
#pragma unroll
  for (int i = 0; i < V; ++i)
    bits[i] = skip == 0 ? all[i] : skip == 1 ? all[i + 1] : skip == 2 ? all[i + 2] : all[i + 3];
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
    std::uint32_t bits[V];
    random_run(rule.key, static_cast<std::uint64_t>(samples[sample]),
               static_cast<std::uint64_t>(element), bits);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if constexpr (kJitter) {
        x[i] = x[i] * factor_of(rule, bits[i]);
      } else {
        x[i] = x[i] * (bits[i] >= rule.threshold ? rule.factor : 0.0F);
      }
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
