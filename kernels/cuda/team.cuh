// Teams of threads that share a row: a warp, or a whole block for long rows. Which of them has
// which elements, and so the shape of a sum over a row, depends on the row's length alone.
#pragma once

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/vec.cuh"

namespace tessera::kernels::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffU;

template <typename T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) x = x + __shfl_xor_sync(kAllLanes, x, i);
  return x;
}
template <typename T>
__device__ __forceinline__ T warp_max(T x) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, x, i);
    x = other > x ? other : x;
  }
  return x;
}

/// Of kThreads threads: 32, several teams to a block, or all of the block's.
template <int kThreads>
struct Team {
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kPerBlock = kThreads == 32 ? 4 : 1;
  static constexpr int kBlock = kThreads * kPerBlock;

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % kThreads; }
  __device__ __forceinline__ static int index() { return static_cast<int>(threadIdx.x) / kThreads; }

  /// Sums over the team, the same for all. `shared` has room for kWarps values and may be used
  /// again after the next barrier: callers alternate between two.
  template <typename T>
  __device__ __forceinline__ static T sum(T x, T* shared) {
    x = warp_sum(x);
    if constexpr (kWarps > 1) {
      if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
      __syncthreads();
      x = shared[0];
      for (int i = 1; i < kWarps; ++i) x = x + shared[i];
    }
    return x;
  }
  template <typename T>
  __device__ __forceinline__ static T max(T x, T* shared) {
    x = warp_max(x);
    if constexpr (kWarps > 1) {
      if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
      __syncthreads();
      x = shared[0];
      for (int i = 1; i < kWarps; ++i) x = shared[i] > x ? shared[i] : x;
    }
    return x;
  }

  /// body(k, column, count) for this thread's runs of V columns; k counts them. At most kRuns of
  /// them, unrolled, so that what belongs to each can stay in registers; or any number for kRuns 0,
  /// and k is always 0.
  template <int V, int kRuns, typename Body>
  __device__ __forceinline__ static void each_run(std::int64_t columns, Body&& body) {
    if constexpr (kRuns > 0) {
      const int n = static_cast<int>(columns);
#pragma unroll
      for (int k = 0; k < kRuns; ++k) {
        const int c = (k * kThreads + lane()) * V;
        if (c < n) body(k, c, n - c < V ? n - c : V);
      }
    } else {
      for (std::int64_t c = std::int64_t{lane()} * V; c < columns; c += kThreads * V) {
        body(0, c, columns - c < V ? static_cast<int>(columns - c) : V);
      }
    }
  }
};

/// f.operator()<kThreads, kRuns>() with the smallest team whose threads have at most kMost runs of
/// V columns each; twice as many in a block of 512, and 0 where not even that is enough.
template <int V, int kMost, typename F>
void with_team(std::int64_t columns, F&& f) {
  const std::int64_t runs = (columns + V - 1) / V;
  if (runs <= 32 * kMost) {
    f.template operator()<32, kMost>();
  } else if (runs <= 128 * kMost) {
    f.template operator()<128, kMost>();
  } else if (runs <= 256 * kMost) {
    f.template operator()<256, kMost>();
  } else if (runs <= 512 * kMost) {
    f.template operator()<512, kMost>();
  } else if (runs <= 512 * 2 * kMost) {
    f.template operator()<512, 2 * kMost>();
  } else {
    f.template operator()<512, 0>();
  }
}

}  // namespace tessera::kernels::cuda
