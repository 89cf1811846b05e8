// Sums over the rows of a matrix, in an order that their number alone decides.
#pragma once

#include "kernels/cuda/vec.cuh"

namespace tessera::kernels::cuda {

// Of a block's threads. Few columns make many blocks, which fill a GPU also where a matrix is
// narrow: eight f32 elements are the 32 bytes that memory is read in.
inline constexpr int kSumColumns = 8, kSumRows = 32;

/// Where sums of matrices go: those of the first `split` matrices, and those of the others.
template <typename G>
struct ColumnSumsOut {
  G* first = nullptr;
  G* others = nullptr;
  std::int64_t split = 1;
};

/// out (+)= sum of x over its rows, for matrices of (rows, C) that lie one after another in both.
/// A thread adds up every 32nd row of its column, then 32 such sums are added as a tree.
template <typename T, typename G>
__global__ void __launch_bounds__(kSumColumns* kSumRows)
    column_sum_kernel(const T* x, std::int64_t rows, std::int64_t columns, ColumnSumsOut<G> out,
                      bool add) {
  __shared__ float part[kSumRows][kSumColumns];
  const auto row = static_cast<int>(threadIdx.x) / kSumColumns;
  const auto lane = static_cast<int>(threadIdx.x) % kSumColumns;
  const std::int64_t strips = (columns + kSumColumns - 1) / kSumColumns;
  const std::int64_t matrix = blockIdx.x / strips;
  const std::int64_t c = blockIdx.x % strips * kSumColumns + lane;
  float sum = 0;
  if (c < columns) {
    const T* from = x + matrix * rows * columns + c;
#pragma unroll 8
    for (std::int64_t r = row; r < rows; r += kSumRows) sum = sum + load_one(from + r * columns);
  }
  part[row][lane] = sum;
  for (int half = kSumRows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (row < half) part[row][lane] = part[row][lane] + part[row + half][lane];
  }
  if (row == 0 && c < columns) {
    G* to = matrix < out.split ? out.first + matrix * columns + c
                               : out.others + (matrix - out.split) * columns + c;
    const float total = part[0][lane];
    store_one(to, add ? load_one(to) + total : total);
  }
}

}  // namespace tessera::kernels::cuda
