// Sums over the rows of a matrix, in an order that their number alone decides.
#pragma once

#include "kernels/cuda/vec.cuh"

namespace tessera::kernels::cuda {

inline constexpr int kSumColumns = 32, kSumRows = 16;  // of a block's threads

/// out (+)= sum of x over its rows, for `matrices` of (rows, C) that lie one after another in both.
/// A thread adds up every 16th row of its column, then 16 such sums are added as a tree.
template <typename T, typename G>
__global__ void __launch_bounds__(kSumColumns* kSumRows)
    column_sum_kernel(const T* x, std::int64_t rows, std::int64_t columns, G* out, bool add) {
  __shared__ float part[kSumRows][kSumColumns];
  const auto row = static_cast<int>(threadIdx.x) / kSumColumns;
  const auto lane = static_cast<int>(threadIdx.x) % kSumColumns;
  const std::int64_t strips = (columns + kSumColumns - 1) / kSumColumns;
  const std::int64_t matrix = blockIdx.x / strips;
  const std::int64_t c = blockIdx.x % strips * kSumColumns + lane;
  float sum = 0;
  if (c < columns) {
    const T* from = x + matrix * rows * columns + c;
#pragma unroll 4
    for (std::int64_t r = row; r < rows; r += kSumRows) sum = sum + load_one(from + r * columns);
  }
  part[row][lane] = sum;
  for (int half = kSumRows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (row < half) part[row][lane] = part[row][lane] + part[row + half][lane];
  }
  if (row == 0 && c < columns) {
    G* to = out + matrix * columns + c;
    const float total = part[0][lane];
    store_one(to, add ? load_one(to) + total : total);
  }
}

}  // namespace tessera::kernels::cuda
