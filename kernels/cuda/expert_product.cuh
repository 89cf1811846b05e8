// Products of each expert's rows with its own matrix, in tiles of 64 by 64: a warp has sixteen rows
// of a tile, and both operands' next pieces are on their way to shared memory while one is
// multiplied. Every result has one owner and one order, whatever goes to other experts.
#pragma once

#include "kernels/cuda/attention_tile.cuh"

namespace tessera::kernels::cuda {

inline constexpr int kProductTile = 64;  // rows and columns of a result's tile
inline constexpr int kProductWarps = kProductTile / kWarpRows;
inline constexpr int kProductThreads = kProductWarps * kWarp;
/// What is multiplied at a time of what results are sums over.
template <typename T>
inline constexpr int kProductDepth = sizeof(T) == 2 ? 64 : 32;

/// How an operand lies in memory: what is summed over in its columns, or in its rows.
enum class SumAlong : std::uint8_t { columns, rows };

/// A piece of an operand in shared memory: (kProductTile, depth), or (depth, kProductTile).
template <typename T, SumAlong kAlong>
struct OperandTile {
  static constexpr int kColumns = kAlong == SumAlong::columns ? kProductDepth<T> : kProductTile;
  static constexpr int kRows = kAlong == SumAlong::columns ? kProductTile : kProductDepth<T>;
  static constexpr int kRow = kPitch<T, kColumns>;
  static constexpr int kElements = kRows * kRow;

  /// Begins to copy the piece whose results begin with `first` and whose terms begin with `depth`.
  static __device__ __forceinline__ void begin(T* tile, HeadMatrix<const T> x, int first,
                                               int depth) {
    const int row = kAlong == SumAlong::columns ? first : depth;
    const int column = kAlong == SumAlong::columns ? depth : first;
    x.data += column, x.dim -= column;
    begin_tile<T, kColumns, kRows>(tile, x, row);
  }
  /// The element of result i and term k.
  static __device__ __forceinline__ float at(const T* tile, int i, int k) {
    return load_one(tile + (kAlong == SumAlong::columns ? i * kRow + k : k * kRow + i));
  }
};

/// sum += a b for a warp's sixteen rows, from `first_row` of the tile on.
template <typename T, SumAlong kA, SumAlong kB>
__device__ __forceinline__ void add_piece(WarpTile<kProductTile>& sum, const T* a, const T* b,
                                          int first_row) {
  using A = OperandTile<T, kA>;
  using B = OperandTile<T, kB>;
  if constexpr (sizeof(T) == 2) {
    // Which of four 8 x 8 matrices a lane gives the address of a row of, as load_matrices has them.
    const int lane = lane_of_warp(), row = lane % 8, matrix = lane / 8;
#pragma unroll
    for (int k = 0; k < kProductDepth<T>; k += 16) {
      std::uint32_t left[4];
      if constexpr (kA == SumAlong::columns) {
        load_matrices(left, a + (first_row + matrix % 2 * 8 + row) * A::kRow + k + matrix / 2 * 8);
      } else {
        load_matrices_transposed(
            left, a + (k + matrix / 2 * 8 + row) * A::kRow + first_row + matrix % 2 * 8);
      }
#pragma unroll
      for (int j = 0; j < kProductTile / 16; ++j) {
        std::uint32_t right[4];
        if constexpr (kB == SumAlong::columns) {
          load_matrices(right, b + (j * 16 + matrix / 2 * 8 + row) * B::kRow + k + matrix % 2 * 8);
        } else {
          load_matrices_transposed(
              right, b + (k + matrix % 2 * 8 + row) * B::kRow + j * 16 + matrix / 2 * 8);
        }
        multiply_add<T>(sum.c[2 * j], left, right[0], right[1]);
        multiply_add<T>(sum.c[2 * j + 1], left, right[2], right[3]);
      }
    }
  } else {
    const int upper = first_row + row_of(0), lower = first_row + row_of(2);
    for (int k = 0; k < kProductDepth<T>; ++k) {
      const float high = A::at(a, upper, k), low = A::at(a, lower, k);
#pragma unroll
      for (int j = 0; j < kProductTile / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float x = B::at(b, 8 * j + column_of(e), k);
          sum.c[j][e] = fmadd(high, x, sum.c[j][e]);
          sum.c[j][2 + e] = fmadd(low, x, sum.c[j][2 + e]);
        }
      }
    }
  }
}

/// Shared memory of a block: two pieces of either operand.
template <typename T, SumAlong kA, SumAlong kB>
inline constexpr std::int64_t kProductBytes = 2 *
                                              (OperandTile<T, kA>::kElements +
                                               OperandTile<T, kB>::kElements) *
                                              static_cast<std::int64_t>(sizeof(T));

/// A tile of the sum over `depth` terms.
template <typename T, SumAlong kA, SumAlong kB>
__device__ __forceinline__ WarpTile<kProductTile> product_tile(const HeadMatrix<const T>& a,
                                                               int first_of_a,
                                                               const HeadMatrix<const T>& b,
                                                               int first_of_b, int depth) {
  using A = OperandTile<T, kA>;
  using B = OperandTile<T, kB>;
  T* shared = dynamic_shared<T>();
  const auto begin = [&](int piece) {
    T* to = shared + piece % 2 * (A::kElements + B::kElements);
    A::begin(to, a, first_of_a, piece * kProductDepth<T>);
    B::begin(to + A::kElements, b, first_of_b, piece * kProductDepth<T>);
    commit_copies();
  };
  WarpTile<kProductTile> sum;
  const int pieces = (depth + kProductDepth<T> - 1) / kProductDepth<T>;
  const int first_row = static_cast<int>(threadIdx.x) / kWarp * kWarpRows;
  __syncthreads();  // an earlier product is read no more
  if (pieces > 0) begin(0);
  for (int p = 0; p < pieces; ++p) {
    if (p + 1 < pieces) {
      begin(p + 1);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();
    const T* piece = shared + p % 2 * (A::kElements + B::kElements);
    add_piece<T, kA, kB>(sum, piece, piece + A::kElements, first_row);
    __syncthreads();
  }
  return sum;
}

/// Operands and results of a product; E of one of them lie behind one another.
template <typename T, typename O>
struct ExpertProduct {
  HeadMatrix<const T> a, b;  // of b, or of the result, each expert's
  HeadMatrix<O> result;
  const std::int32_t* begins;
  int experts;
  std::int64_t column_tiles;
  bool add;
};

/// The expert that has a row: the last that begins at or before it.
__device__ __forceinline__ int expert_of_row(const std::int32_t* begins, int experts, int row) {
  int low = 0, high = experts;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (begins[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Rows of an operand, or all of it where they are what is summed over.
template <typename T>
__device__ __forceinline__ HeadMatrix<T> rows_from(HeadMatrix<T> x, std::int64_t first, int rows) {
  x.data += first * x.ld;
  x.tokens = rows;
  return x;
}

/// Results (R, columns) of rows a (R, depth): a block has 64 rows and columns, and goes through the
/// experts whose rows are among them.
template <typename T, typename O, SumAlong kB>
__global__ void __launch_bounds__(kProductThreads) expert_rows_kernel(ExpertProduct<T, O> p) {
  const std::int64_t row_tile = quotient(blockIdx.x, p.column_tiles);
  const int first_row = static_cast<int>(row_tile) * kProductTile,
            column = static_cast<int>(blockIdx.x - row_tile * p.column_tiles) * kProductTile;
  const int end = first_row + kProductTile;
  for (int e = expert_of_row(p.begins, p.experts, first_row); e < p.experts; ++e) {
    const int from = p.begins[e] > first_row ? p.begins[e] : first_row,
              to = p.begins[e + 1] < end ? p.begins[e + 1] : end;
    if (p.begins[e] >= end) break;
    if (from >= to) continue;
    const auto tile = product_tile<T, SumAlong::columns, kB>(
        rows_from(p.a, from, to - from), 0,
        rows_from(p.b, std::int64_t{e} * p.b.tokens, p.b.tokens), column, p.a.dim);
    store_tile(tile, rows_from(p.result, from, to - from),
               static_cast<int>(threadIdx.x) / kWarp * kWarpRows, column, {1.0F, 1.0F});
  }
}

/// tile += what is stored where it will be written.
template <typename O>
__device__ __forceinline__ void add_stored(WarpTile<kProductTile>& tile, const HeadMatrix<O>& from,
                                           int first, int first_column) {
#pragma unroll
  for (int j = 0; j < kProductTile / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = first + row_of(e), column = first_column + 8 * j + column_of(e);
      if (row < from.tokens && column < from.dim)
        tile.c[j][e] = load_one(from.data + row * from.ld + column) + tile.c[j][e];
    }
  }
}

/// Each expert's result (rows, columns), a sum over its rows: a block has 64 rows and columns of
/// it.
template <typename T, typename O>
__global__ void __launch_bounds__(kProductThreads) expert_sums_kernel(ExpertProduct<T, O> p) {
  const std::int64_t row_tiles = (p.result.tokens + kProductTile - 1) / kProductTile;
  const std::int64_t tile_of_all = quotient(blockIdx.x, p.column_tiles);
  const auto e = static_cast<int>(quotient(tile_of_all, row_tiles));
  const int row = static_cast<int>(tile_of_all - e * row_tiles) * kProductTile;
  const int column = static_cast<int>(blockIdx.x - tile_of_all * p.column_tiles) * kProductTile;
  const int from = p.begins[e], depth = p.begins[e + 1] - from;
  auto tile = product_tile<T, SumAlong::rows, SumAlong::rows>(
      rows_from(p.a, from, depth), row, rows_from(p.b, from, depth), column, depth);
  const HeadMatrix<O> result =
      rows_from(p.result, std::int64_t{e} * p.result.tokens, p.result.tokens);
  const int first = row + static_cast<int>(threadIdx.x) / kWarp * kWarpRows;
  if (p.add) add_stored(tile, result, first, column);
  store_tile(tile, result, first, column, {1.0F, 1.0F});
}

}  // namespace tessera::kernels::cuda
