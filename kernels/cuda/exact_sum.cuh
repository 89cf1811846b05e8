// Exact sums by error-free extraction, as the CPU's (kernels/cpu/hot/elementwise.cpp has the
// argument): a warp takes 512 terms below 2^top, rounds each to a multiple of 2^(top - 40), adds
// the rounded parts in double, which 49 bits hold exactly in any order, and goes on with the
// remainders, 40 bits lower, until all are 0.
#pragma once

#include "core/exact_words.hpp"
#include "kernels/cuda/team.cuh"

namespace tessera::kernels::cuda {

inline constexpr int kExactWarps = 8, kExactPerThread = 16, kExactBits = 40;
inline constexpr std::int64_t kExactTile = 32 * kExactPerThread;  // of a warp

using Atomic = unsigned long long;  // two's complement: sums of signed numbers come out right

/// words += the sum of `terms` over the warp; they are used up.
__device__ __forceinline__ void add_warp_terms(double (&terms)[kExactPerThread], int top,
                                               std::int64_t* words) {
  bool left = true;
  while (__any_sync(kAllLanes, left)) {
    const double big = 1.5 * exact_words::power_of_two(top + 52 - kExactBits);
    double sum = 0;
    left = false;
#pragma unroll
    for (int i = 0; i < kExactPerThread; ++i) {
      const double high = (terms[i] + big) - big;
      terms[i] = terms[i] - high;
      sum = sum + high;
      left = left || terms[i] != 0;
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
      exact_words::split(sum, [&](int limb, std::int64_t part) { words[limb] += part; });
    top -= kExactBits;
  }
}

/// words += the exact sum of the warp's values, or of their squares.
__device__ __forceinline__ void add_warp_values(const float (&value)[kExactPerThread], bool squares,
                                                std::int64_t* words) {
  std::uint32_t largest = 0;  // bits of |value| order like the values
#pragma unroll
  for (int i = 0; i < kExactPerThread; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value[i]) & 0x7fffffffU;
    largest = bits > largest ? bits : largest;
  }
  largest = __reduce_max_sync(kAllLanes, largest);
  if (largest == 0) return;
  double terms[kExactPerThread];
#pragma unroll
  for (int i = 0; i < kExactPerThread; ++i) {
    float v = value[i];
    if (largest >= 0x7f800000U) {
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(v) & 0x7fffffffU;
      if (bits >= 0x7f800000U) {
        atomicAdd(
            reinterpret_cast<Atomic*>(&words[bits > 0x7f800000U ? kExactSumNan : kExactSumInf]),
            Atomic{1});
        v = 0;
      }
    }
    const auto wide_value = static_cast<double>(v);
    terms[i] = squares ? wide_value * wide_value : wide_value;
  }
  // |value| < 2^top
  const int top = static_cast<int>((largest < 0x7f7fffffU ? largest : 0x7f7fffffU) >> 23) - 126;
  add_warp_terms(terms, squares ? 2 * top : top, words);
}

/// accumulator += the exact sum of x, or of its squares, of which each of `blocks` blocks adds
/// every so many tiles; this one is number `block`.
template <typename T>
__device__ __forceinline__ void add_tiles(const T* x, std::int64_t n, bool squares, bool wide,
                                          std::int64_t block, std::int64_t blocks,
                                          Atomic* accumulator) {
  constexpr int V = kRun<T>;
  __shared__ std::int64_t words[kExactWarps][kExactSumWords];
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  if (lane < kExactSumWords) words[warp][lane] = 0;
  __syncwarp();
  const std::int64_t step = blocks * kExactWarps * kExactTile;
  for (std::int64_t tile = (block * kExactWarps + warp) * kExactTile; tile < n; tile += step) {
    float value[kExactPerThread];
#pragma unroll
    for (int k = 0; k < kExactPerThread / V; ++k) {
      const std::int64_t i = tile + (k * 32 + lane) * V, left = n - i;
      float run[V];
      load(x + i, left < 0 ? 0 : left < V ? static_cast<int>(left) : V, wide, run);
#pragma unroll
      for (int j = 0; j < V; ++j) value[k * V + j] = run[j];
    }
    add_warp_values(value, squares, words[warp]);
  }
  __syncthreads();
  if (thread < kExactSumWords) {
    std::int64_t sum = 0;
    for (int w = 0; w < kExactWarps; ++w) sum += words[w][thread];
    if (sum != 0) atomicAdd(accumulator + thread, static_cast<Atomic>(sum));
  }
}

template <typename T>
__global__ void __launch_bounds__(32 * kExactWarps)
    exact_sum_kernel(const T* x, std::int64_t n, bool squares, bool wide, Atomic* accumulator) {
  add_tiles(x, n, squares, wide, blockIdx.x, gridDim.x, accumulator);
}

/// A block for each row of `columns`: into[row] says to which accumulator it is added.
template <typename T>
__global__ void __launch_bounds__(32 * kExactWarps)
    exact_sums_kernel(const T* x, std::int64_t columns, const std::int32_t* into, bool wide,
                      Atomic* accumulators) {
  const std::int64_t row = blockIdx.x;
  if (into[row] < 0) return;
  add_tiles(x + row * columns, columns, false, wide, 0, 1,
            accumulators + into[row] * kExactSumWords);
}

/// A warp for each sum: the carries are one thread's, in shared memory.
inline __global__ void __launch_bounds__(32) exact_normalise_kernel(std::int64_t* sums) {
  std::int64_t* words = sums + blockIdx.x * kExactSumWords;
  __shared__ std::int64_t near[kExactSumWords];
  if (threadIdx.x < kExactSumWords) near[threadIdx.x] = words[threadIdx.x];
  __syncwarp();
  if (threadIdx.x == 0) exact_words::normalise(near);
  __syncwarp();
  if (threadIdx.x < kExactSumWords) words[threadIdx.x] = near[threadIdx.x];
}

}  // namespace tessera::kernels::cuda
