// Rotary positions: a table of cosines and sines, then one pass over the heads.
#pragma once

#include "kernels/common/rope.hpp"
#include "kernels/cuda/dropout.cuh"

namespace tessera::kernels::cuda {

inline constexpr int kTurnThreads = 64;

/// A thread has one column of one run of positions.
inline __global__ void __launch_bounds__(kTurnThreads)
    turns_kernel(Turns turns, std::int64_t runs, float* table) {
  const std::int64_t half = turns.head_dim / 2;
  const std::int64_t i = std::int64_t{blockIdx.x} * kTurnThreads + threadIdx.x;
  if (i < runs * half) turn_run(turns, i / half, i % half, table);
}

/// Rows are those of every head, columns half a head's.
template <typename T>
struct RopeRun {
  static constexpr int V = kRun<T>;
  Rows<T> x;
  const float* turns;  // (T, 2, D / 2)
  std::int64_t heads, half, tokens;
  float sign;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t head_row, std::int64_t c,
                                             int count) const {
    const std::int64_t r = quotient(head_row, heads), head = head_row - r * heads;
    const std::int64_t t = r - quotient(r, tokens) * tokens;
    T* low = x[r] + head * 2 * half + c;
    const float* cosine = turns + t * 2 * half + c;
    float a[V], b[V], cos[V], sin[V], turned[V];
    load(low, count, wide, a);
    load(low + half, count, wide, b);
    load(cosine, count, wide, cos);
    load(cosine + half, count, wide, sin);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float s = sin[i] * sign;
      turned[i] = a[i] * cos[i] - b[i] * s;
      b[i] = fmadd(a[i], s, b[i] * cos[i]);
    }
    store(low, count, wide, turned);
    store(low + half, count, wide, b);
  }
};

}  // namespace tessera::kernels::cuda
