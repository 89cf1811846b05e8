// Rotary positions: a table of cosines and sines, then one pass over the heads.
#pragma once

#include "kernels/common/rope.hpp"
#include "kernels/common/sight.hpp"
#include "kernels/cuda/dropout.cuh"

namespace tessera::kernels::cuda {

inline constexpr int kTurnThreads = 64;

/// Tables of cosines and sines, one behind the other: of the call's positions, or with `cached` of
/// each sample's own, which may be divided into fewer than `runs` runs.
struct TurnTables {
  Turns turns;
  RopeScaling scaling;
  const CachedSample* cached;  // or null
  std::int64_t count, runs;    // how many there are, and runs of each at most
  float* data;
};

/// A thread has one pair of one run of positions.
inline __global__ void __launch_bounds__(kTurnThreads) turns_kernel(TurnTables tables) {
  const std::int64_t half = tables.turns.dim / 2;
  const std::int64_t i = std::int64_t{blockIdx.x} * kTurnThreads + threadIdx.x;
  if (i >= tables.count * tables.runs * half) return;
  const std::int64_t run = i / half, sample = run / tables.runs;
  Turns turns = tables.turns;
  if (tables.cached != nullptr) turns = turns_of(turns, tables.scaling, tables.cached[sample]);
  turn_run(turns, run - sample * tables.runs, i - run * half,
           tables.data + sample * turns.tokens * turns.dim);
}

/// Rows are those of every head, columns its pairs.
template <typename T>
struct RopeRun {
  static constexpr int V = kRun<T>;
  Rows<T> x;                      // from the first column that turns
  const float* turns;             // (T, 2, half), with `own_turns` (B, T, 2, half)
  const std::int32_t* documents;  // or null
  std::int64_t heads, head_dim, half, tokens;
  float sign;
  bool own_turns, neighbours, wide;

  __device__ __forceinline__ std::int64_t table_row(std::int64_t r) const {
    if (own_turns) return r;
    const std::int64_t sample = quotient(r, tokens), t = r - sample * tokens;
    return t - document_of(documents, sample, t, tokens).begin;
  }
  __device__ __forceinline__ void operator()(std::int64_t head_row, std::int64_t c,
                                             int count) const {
    const std::int64_t r = quotient(head_row, heads), head = head_row - r * heads;
    T* const columns = x[r] + head * head_dim;
    const float* cosine = turns + table_row(r) * 2 * half + c;
    float a[V], b[V], cos[V], sin[V];
    load(cosine, count, wide, cos);
    load(cosine + half, count, wide, sin);
    if (neighbours) {
      load_pairs(columns + 2 * c, count, a, b);
    } else {
      load(columns + c, count, wide, a);
      load(columns + half + c, count, wide, b);
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float s = sin[i] * sign, first = a[i] * cos[i] - b[i] * s;
      b[i] = fmadd(a[i], s, b[i] * cos[i]);
      a[i] = first;
    }
    if (neighbours) {
      store_pairs(columns + 2 * c, count, a, b);
    } else {
      store(columns + c, count, wide, a);
      store(columns + half + c, count, wide, b);
    }
  }

  /// Two runs, which hold the elements of pairs one after another.
  __device__ __forceinline__ void load_pairs(const T* p, int count, float (&a)[V],
                                             float (&b)[V]) const {
    float low[V], high[V];
    load(p, 2 * count, wide, low);
    load(p + V, 2 * count - V, wide, high);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      a[i] = i < V / 2 ? low[2 * i % V] : high[2 * i % V];
      b[i] = i < V / 2 ? low[2 * i % V + 1] : high[2 * i % V + 1];
    }
  }
  __device__ __forceinline__ void store_pairs(T* p, int count, const float (&a)[V],
                                              const float (&b)[V]) const {
    float low[V], high[V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      low[i] = i % 2 == 0 ? a[i / 2] : b[i / 2];
      high[i] = i % 2 == 0 ? a[V / 2 + i / 2] : b[V / 2 + i / 2];
    }
    store(p, 2 * count, wide, low);
    store(p + V, 2 * count - V, wide, high);
  }
};

}  // namespace tessera::kernels::cuda
