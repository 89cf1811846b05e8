// Lengths of rows, and columns that are scaled with them.
#pragma once

#include "kernels/api/magnitude.hpp"
#include "kernels/cuda/team.cuh"

namespace tessera::kernels::cuda {

/// A team for each row.
template <typename T>
struct RowSquaresRun {
  static constexpr int V = kRun<T, float>;
  Rows<T> weight;
  Rows<float> update;
  float scale;
  float* out;
  std::int64_t rows, columns;
  bool wide;
  Team team;
};

template <typename T>
__global__ void __launch_bounds__(Team::kMostThreads) row_squares_kernel(RowSquaresRun<T> a) {
  constexpr int V = RowSquaresRun<T>::V;
  __shared__ float shared[Team::kMostWarps];
  const std::int64_t r =
      static_cast<std::int64_t>(blockIdx.x) * a.team.per_block() + a.team.index();
  if (r >= a.rows) return;
  float sum = 0;
  a.team.template each_run<V, 0>(a.columns, [&](int, std::int64_t c, int count) {
    float w[V], u[V];
    load(a.weight[r] + c, count, a.wide, w);
    load(a.update[r] + c, count, a.wide, u);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float v = fmadd(u[j], a.scale, w[j]);
      sum = fmadd(v, v, sum);
    }
  });
  sum = a.team.sum(sum, shared);
  if (a.team.lane() == 0) a.out[r] = sum;
}

template <typename X, typename B, typename T>
struct ScaleColumnsRun {
  static constexpr int V = kRun<X, B, T>;
  Rows<X> x;
  const float *magnitude, *squares;
  const B* bias;
  Rows<T> out;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float v[V], added[V] = {};
    load(x[r] + c, count, wide, v);
    if (bias != nullptr) load(bias + c, count, wide, added);
    if (magnitude != nullptr) {
      float m[V], s[V];
      load(magnitude + c, count, wide, m);
      load(squares + c, count, wide, s);
#pragma unroll
      for (int j = 0; j < V; ++j) v[j] = fmadd(v[j], s[j] > 0 ? m[j] / sqrt(s[j]) : 1.0F, added[j]);
    } else {
#pragma unroll
      for (int j = 0; j < V; ++j) v[j] = v[j] + added[j];
    }
    store(out[r] + c, count, wide, v);
  }
};

inline constexpr int kMagnitudeColumns = 32, kMagnitudeRows = 32;  // of a block's threads

/// As column_sum_kernel: a thread adds up every 32nd row of its column, then 32 such sums are added
/// as a tree.
template <typename T, typename G>
__global__ void __launch_bounds__(kMagnitudeColumns* kMagnitudeRows)
    magnitude_backward_kernel(Rows<T> d_y, Rows<T> x, const float* squares, G* out,
                              std::int64_t rows, std::int64_t columns, bool add) {
  __shared__ float part[kMagnitudeRows][kMagnitudeColumns];
  const auto row = static_cast<int>(threadIdx.x) / kMagnitudeColumns;
  const auto lane = static_cast<int>(threadIdx.x) % kMagnitudeColumns;
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kMagnitudeColumns + lane;
  float sum = 0;
  if (c < columns) {
#pragma unroll 8
    for (std::int64_t r = row; r < rows; r += kMagnitudeRows)
      sum = fmadd(load_one(d_y[r] + c), load_one(x[r] + c), sum);
  }
  part[row][lane] = sum;
  for (int half = kMagnitudeRows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (row < half) part[row][lane] = part[row][lane] + part[row + half][lane];
  }
  if (row == 0 && c < columns) {
    const float total = squares[c] > 0 ? part[0][lane] / sqrt(squares[c]) : 0.0F;
    store_one(out + c, add ? load_one(out + c) + total : total);
  }
}

}  // namespace tessera::kernels::cuda
