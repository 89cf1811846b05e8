// Columns that heads share: rows of the launches are those of every head, or those of tokens.
#pragma once

#include "kernels/cuda/vec.cuh"

namespace tessera::kernels::cuda {

/// A head's columns: of row r and head h those from h step + first on. A step of 0: all heads have
/// the same.
template <typename T>
struct HeadColumns {
  Rows<T> rows;
  std::int64_t step, first;

  __device__ __forceinline__ T* of(std::int64_t row, std::int64_t head) const {
    return rows[row] + head * step + first;
  }
};

template <typename T>
struct CopyHeadsRun {
  static constexpr int V = kRun<T>;
  HeadColumns<T> from, to;
  std::int64_t heads;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t head_row, std::int64_t c,
                                             int count) const {
    const std::int64_t r = quotient(head_row, heads), head = head_row - r * heads;
    float v[V];
    load(from.of(r, head) + c, count, wide, v);
    store(to.of(r, head) + c, count, wide, v);
  }
};

template <typename T, typename G>
struct SumHeadsRun {
  static constexpr int V = kRun<T, G>;
  HeadColumns<T> from;
  Rows<G> to;
  std::int64_t heads;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float sum[V] = {};
    for (std::int64_t h = 0; h < heads; ++h) {
      float v[V];
      load(from.of(r, h) + c, count, wide, v);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] = sum[i] + v[i];
    }
    store(to[r] + c, count, wide, sum);
  }
};

}  // namespace tessera::kernels::cuda
