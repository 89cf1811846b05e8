// Exact sums by error-free extraction, as the CPU's (kernels/cpu/hot/elementwise.cpp has the
// argument): a warp takes 512 terms below 2^top, rounds each to a multiple of 2^(top - 40), adds
// the rounded parts in double, which 49 bits hold exactly in any order, and goes on with the
// remainders, 40 bits lower, until all are 0. Tiles of terms that lie close together are added
// faster, as integers.
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

/// Exact sums of tiles whose terms lie close together, which is the rule: a term below 2^top is
/// rounded to a multiple of 2^(top - 50) by adding a large number, whose low bits then are that
/// multiple, and these are added as integers. Squares of more than 8 bits have a second level, of
/// what was rounded away. Tiles follow one another into the same integers, with nothing to be done
/// between; those of which two levels are not all go through add_warp_values.
template <typename T, bool kSquares>
class CloseTerms {
 public:
  /// words += the sums of the tiles before, where these cannot go on, or of this one.
  __device__ __forceinline__ void add(const float (&value)[kExactPerThread], std::int64_t* words) {
    std::uint32_t largest = 0, nearest = 0;  // bits of |value|; the negative of the least but 0
#pragma unroll
    for (int i = 0; i < kExactPerThread; ++i) {
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(value[i]) & 0x7fffffffU;
      largest = bits > largest ? bits : largest;
      nearest = 0U - bits > nearest ? 0U - bits : nearest;
    }
    largest = __reduce_max_sync(kAllLanes, largest);
    nearest = __reduce_max_sync(kAllLanes, nearest);
    if (largest == 0) return;
    // |term| < 2^top, and a multiple of 2^unit.
    const auto smallest = static_cast<int>((0U - nearest) >> 23);
    const int top = kPower * (static_cast<int>(largest >> 23) - 126),
              unit = kPower * ((smallest > 1 ? smallest : 1) - 126 - kDigits);
    if (largest >= 0x7f800000U || unit < top - kLevels * kBits) {
      add_warp_values(value, kSquares, words);
      return;
    }
    if (top > top_ || unit < top_ - kLevels * kBits || tiles_ == kMostTiles) {
      finish(words);
      top_ = top;
    }
    const double big = large(0), next_big = large(1);
#pragma unroll
    for (int i = 0; i < kExactPerThread; ++i) {
      const auto v = static_cast<double>(value[i]);
      const double rounded = kSquares ? __builtin_fma(v, v, big) : v + big;
      sums_[0] += std::bit_cast<std::uint64_t>(rounded);
      if constexpr (kLevels == 2) {
        const double high = rounded - big, low = __builtin_fma(v, v, -high);
        sums_[1] += std::bit_cast<std::uint64_t>(low + next_big);
      }
    }
    ++tiles_;
  }

  /// words += what is not there yet.
  __device__ __forceinline__ void finish(std::int64_t* words) {
    if (tiles_ == 0) return;
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      const auto numbers = static_cast<std::uint64_t>(tiles_ * kExactPerThread);
      const std::int64_t sum = warp_sum(static_cast<std::int64_t>(
          sums_[level] - numbers * std::bit_cast<std::uint64_t>(large(level))));
      if (threadIdx.x % 32 == 0) {
        const auto magnitude = static_cast<std::uint64_t>(sum < 0 ? -sum : sum);
        exact_words::split(magnitude, top_ - (level + 1) * kBits, sum < 0,
                           [&](int limb, std::int64_t part) { words[limb] += part; });
      }
      sums_[level] = 0;
    }
    tiles_ = 0;
  }

 private:
  static constexpr int kPower = kSquares ? 2 : 1;
  static constexpr int kDigits = sizeof(T) == 4 ? 24 : std::is_same_v<T, bf16> ? 8 : 11;
  static constexpr int kLevels = kSquares && kDigits > 8 ? 2 : 1;
  static constexpr int kBits = 50;      // (top - 50) + 52 > top + 1: the large number stays large
  static constexpr int kMostTiles = 8;  // of 2^9 terms up to 2^50: sums stay below 2^63

  /// Its last bit is 2^(top - 50), on the second level 50 below.
  __device__ __forceinline__ double large(int level) const {
    return 1.5 * exact_words::power_of_two(top_ - (level + 1) * kBits + 52);
  }

  int top_ = -1000, tiles_ = 0;
  std::uint64_t sums_[kLevels] = {};  // of the bits of large numbers
};

/// accumulator += the exact sum of x, or of its squares, of which each of `blocks` blocks adds
/// every so many tiles; this one is number `block`.
template <typename T, bool kSquares>
__device__ __forceinline__ void add_tiles(const T* x, std::int64_t n, bool wide, std::int64_t block,
                                          std::int64_t blocks, Atomic* accumulator) {
  constexpr int V = kRun<T>;
  __shared__ std::int64_t words[kExactWarps][kExactSumWords];
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  if (lane < kExactSumWords) words[warp][lane] = 0;
  __syncwarp();
  CloseTerms<T, kSquares> terms;
  const std::int64_t step = blocks * kExactWarps * kExactTile;
  for (std::int64_t tile = (block * kExactWarps + warp) * kExactTile; tile < n; tile += step) {
    float value[kExactPerThread];
    RawRun<T, V> raw[kExactPerThread / V];
#pragma unroll
    for (int k = 0; k < kExactPerThread / V; ++k) {
      const std::int64_t i = tile + (k * 32 + lane) * V, left = n - i;
      raw[k].read(x + i, left < 0 ? 0 : left < V ? static_cast<int>(left) : V, wide);
    }
#pragma unroll
    for (int k = 0; k < kExactPerThread / V; ++k) {
      float run[V];
      raw[k].unpack(run);
#pragma unroll
      for (int j = 0; j < V; ++j) value[k * V + j] = run[j];
    }
    terms.add(value, words[warp]);
  }
  terms.finish(words[warp]);
  __syncthreads();
  if (thread < kExactSumWords) {
    std::int64_t sum = 0;
    for (int w = 0; w < kExactWarps; ++w) sum += words[w][thread];
    if (sum != 0) atomicAdd(accumulator + thread, static_cast<Atomic>(sum));
  }
}

template <typename T, bool kSquares>
__global__ void __launch_bounds__(32 * kExactWarps)
    exact_sum_kernel(const T* x, std::int64_t n, bool wide, Atomic* accumulator) {
  add_tiles<T, kSquares>(x, n, wide, blockIdx.x, gridDim.x, accumulator);
}

/// `blocks` blocks for each row of `columns`: into[row] says to which accumulator it is added.
template <typename T>
__global__ void __launch_bounds__(32 * kExactWarps)
    exact_sums_kernel(const T* x, std::int64_t columns, std::int64_t blocks,
                      const std::int32_t* into, bool wide, Atomic* accumulators) {
  const std::int64_t row = quotient(blockIdx.x, blocks);
  if (into[row] < 0) return;
  add_tiles<T, false>(x + row * columns, columns, wide, blockIdx.x - row * blocks, blocks,
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
