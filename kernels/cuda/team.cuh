// Teams of threads that share a row: a warp, or a whole block for long rows. Which of them has
// which elements, and so the shape of a sum over a row, depends on the row's length alone.
#pragma once

#include <algorithm>

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

/// A team of 32 threads (several to a block), or of all threads of a block, which are whole warps.
struct Team {
  static constexpr int kMostThreads = 512, kMostWarps = kMostThreads / 32;
  static constexpr int kWarpsABlock = 4;  // that are a team each
  int threads;

  TESSERA_INLINE constexpr int per_block() const { return threads == 32 ? kWarpsABlock : 1; }
  TESSERA_INLINE constexpr int block() const { return threads * per_block(); }

  __device__ __forceinline__ int lane() const {
    return static_cast<int>(threads == 32 ? threadIdx.x % 32 : threadIdx.x);
  }
  __device__ __forceinline__ int index() const {
    return threads == 32 ? static_cast<int>(threadIdx.x) / 32 : 0;
  }

  /// Sums over the team, the same for all. `shared` has room for kMostWarps values and may be used
  /// again after the next barrier: callers alternate between two.
  template <typename T>
  __device__ __forceinline__ T sum(T x, T* shared) const {
    return over_warps(warp_sum(x), shared, [](T a, T b) { return a + b; });
  }
  /// Two sums by one barrier, with room for twice as many values.
  __device__ __forceinline__ void sum_both(float& x, float& y, float* shared) const {
    x = warp_sum(x), y = warp_sum(y);
    if (threads == 32) return;
    auto* both = reinterpret_cast<float2*>(shared);
    if (threadIdx.x % 32 == 0) both[threadIdx.x / 32] = make_float2(x, y);
    __syncthreads();
    x = both[0].x, y = both[0].y;
    for (int i = 1; i < threads / 32; ++i) x = x + both[i].x, y = y + both[i].y;
  }
  template <typename T>
  __device__ __forceinline__ T max(T x, T* shared) const {
    return over_warps(warp_max(x), shared, [](T a, T b) { return b > a ? b : a; });
  }

  /// body(k, column, count) for this thread's runs of V columns; k counts them. At most kRuns of
  /// them, unrolled, so that what belongs to each can stay in registers; or any number for kRuns 0,
  /// and k is always 0.
  template <int V, int kRuns, typename Body>
  __device__ __forceinline__ void each_run(std::int64_t columns, Body&& body) const {
    if constexpr (kRuns > 0) {
      const int n = static_cast<int>(columns);
#pragma unroll
      for (int k = 0; k < kRuns; ++k) {
        const int c = (k * threads + lane()) * V;
        if (c < n) body(k, c, n - c < V ? n - c : V);
      }
    } else {
      for (std::int64_t c = std::int64_t{lane()} * V; c < columns; c += threads * V) {
        body(0, c, columns - c < V ? static_cast<int>(columns - c) : V);
      }
    }
  }

 private:
  /// Combines what the team's warps have, in their order.
  template <typename T, typename F>
  __device__ __forceinline__ T over_warps(T x, T* shared, F&& combine) const {
    if (threads == 32) return x;
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = shared[0];
    for (int i = 1; i < threads / 32; ++i) x = combine(x, shared[i]);
    return x;
  }
};

/// f.operator()<kRuns>(team) with the smallest team whose threads have at most kMost runs of V
/// columns each; kMore in a block of 512, and 0, any number, where not even that is enough.
template <int V, int kMost, int kMore = kMost, typename F>
void with_team(std::int64_t columns, F&& f) {
  const std::int64_t runs = (columns + V - 1) / V;
  const std::int64_t warps = (runs + 32 * kMost - 1) / (32 * kMost);
  if (warps <= Team::kMostWarps)
    return f.template operator()<kMost>(
        Team{static_cast<int>(std::max<std::int64_t>(1, warps)) * 32});
  if (kMore > kMost && runs <= Team::kMostThreads * kMore) {
    f.template operator()<kMore>(Team{Team::kMostThreads});
  } else {
    f.template operator()<0>(Team{Team::kMostThreads});
  }
}

}  // namespace tessera::kernels::cuda
