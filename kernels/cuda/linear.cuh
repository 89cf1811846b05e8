// Sums over the rows of a matrix, in two stages whose shape depends on the matrix's alone: blocks
// add up chunks of rows, then one thread a column adds up the chunks in order.
#pragma once

#include "kernels/cuda/vec.cuh"

namespace tessera::kernels::cuda {

inline constexpr int kChunkWarps = 8, kChunkThreads = 32 * kChunkWarps;

/// partial (chunks, columns): chunk i has rows [i rows / chunks, (i + 1) rows / chunks). A lane has
/// a run of columns; the warps of a block take turns with the rows.
template <typename T>
__global__ void __launch_bounds__(kChunkThreads)
    sum_chunks(Rows<const T> x, std::int64_t rows, std::int64_t columns, std::int64_t chunks,
               bool wide, float* partial) {
  constexpr int V = kRun<T>, kColumns = 32 * V;
  __shared__ float sums[kChunkWarps][kColumns];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t chunk = blockIdx.x % chunks, first = blockIdx.x / chunks * kColumns;
  const std::int64_t column = first + lane * V, left = columns - column;
  const int count = left >= V ? V : left > 0 ? static_cast<int>(left) : 0;

  float sum[V] = {};
  const std::int64_t end = (chunk + 1) * rows / chunks;
  for (std::int64_t row = chunk * rows / chunks + warp; row < end; row += kChunkWarps) {
    float v[V];
    load(x[row] + column, count, wide, v);
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] += v[i];
  }
#pragma unroll
  for (int i = 0; i < V; ++i) sums[warp][lane * V + i] = sum[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kColumns && first + i < columns;
       i += kChunkThreads) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kChunkWarps; ++w) total += sums[w][i];
    partial[chunk * columns + first + i] = total;
  }
}

}  // namespace tessera::kernels::cuda
