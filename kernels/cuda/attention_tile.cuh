// A warp's products of small matrices in shared memory, for attention: 16 rows by as many columns
// as the tile has. 16-bit operands go through tensor cores, f32 through fused multiply-adds; both
// leave a lane the same elements of the result.
#pragma once

#include "kernels/common/math.hpp"
#include "kernels/cuda/team.cuh"

namespace tessera::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kWarpRows = 16;

/// Elements of one copy of 16 bytes.
template <typename T>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(T));

/// Distance of a tile's rows: one vector more than they hold, so that eight rows of the same column
/// lie in different banks.
template <typename T, int kDim>
inline constexpr int kPitch = kDim + kVector<T>;

/// A lane's elements of a (16, kColumns) result: c[j][e] is in row row_of(e), column 8 j +
/// column_of(e).
template <int kColumns>
struct WarpTile {
  float c[kColumns / 8][4] = {};
};
__device__ __forceinline__ int lane_of_warp() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ __forceinline__ int row_of(int element) {
  return lane_of_warp() / 4 + (element / 2) * 8;
}
__device__ __forceinline__ int column_of(int element) {
  return lane_of_warp() % 4 * 2 + element % 2;
}

/// result = a b^T: a (16, kDim), b (kColumns, kDim), both with rows kPitch apart.
template <typename T, int kDim, int kColumns>
__device__ __forceinline__ WarpTile<kColumns> product_of_rows(const T* a, const T* b) {
  constexpr int kRow = kPitch<T, kDim>;
  WarpTile<kColumns> result;
  const int lane = lane_of_warp();
  if constexpr (sizeof(T) == 2) {
    const T* a_row = a + lane % 16 * kRow + lane / 16 * 8;
    const T* b_row = b + (lane % 8 + lane / 16 * 8) * kRow + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < kDim; k += 16) {
      std::uint32_t left[4];
      load_matrices(left, a_row + k);
#pragma unroll
      for (int j = 0; j < kColumns / 16; ++j) {
        std::uint32_t right[4];
        load_matrices(right, b_row + j * 16 * kRow + k);
        multiply_add<T>(result.c[2 * j], left, right[0], right[1]);
        multiply_add<T>(result.c[2 * j + 1], left, right[2], right[3]);
      }
    }
  } else {
    const float* left[2] = {a + row_of(0) * kRow, a + row_of(2) * kRow};
    const float* right = b + column_of(0) * kRow;
    for (int k = 0; k < kDim; k += 4) {
      const auto low = *reinterpret_cast<const float4*>(left[0] + k);
      const auto high = *reinterpret_cast<const float4*>(left[1] + k);
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const auto x = *reinterpret_cast<const float4*>(right + (8 * j + e) * kRow + k);
          float& upper = result.c[j][e];
          float& lower = result.c[j][2 + e];
          upper = fmadd(low.w, x.w, fmadd(low.z, x.z, fmadd(low.y, x.y, fmadd(low.x, x.x, upper))));
          lower =
              fmadd(high.w, x.w, fmadd(high.z, x.z, fmadd(high.y, x.y, fmadd(high.x, x.x, lower))));
        }
      }
    }
  }
  return result;
}

/// Floats of staging that add_product takes for each warp.
template <typename T, int kInner>
inline constexpr int kStaging = sizeof(T) == 2 ? 0 : kWarpRows*(kInner + 4);

/// sum += p b: p (16, kInner) in registers, rounded to T on its way; b (kInner, kColumns) with rows
/// kPitch<T, kDim> apart. `staging` is the warp's own.
template <typename T, int kDim, int kInner, int kColumns>
__device__ __forceinline__ void add_product(WarpTile<kColumns>& sum, const WarpTile<kInner>& p,
                                            const T* b, float* staging) {
  constexpr int kRow = kPitch<T, kDim>;
  const int lane = lane_of_warp();
  if constexpr (sizeof(T) == 2) {
    const T* b_row = b + lane % 16 * kRow + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < kInner / 16; ++k) {
      // What a lane has of two neighbouring results is what it must have of an operand.
      const float(&left)[4] = p.c[2 * k];
      const float(&right)[4] = p.c[2 * k + 1];
      const std::uint32_t rows[4] = {pack<T>(left[0], left[1]), pack<T>(left[2], left[3]),
                                     pack<T>(right[0], right[1]), pack<T>(right[2], right[3])};
#pragma unroll
      for (int j = 0; j < kColumns / 16; ++j) {
        std::uint32_t columns[4];
        load_matrices_transposed(columns, b_row + k * 16 * kRow + j * 16);
        multiply_add<T>(sum.c[2 * j], rows, columns[0], columns[1]);
        multiply_add<T>(sum.c[2 * j + 1], rows, columns[2], columns[3]);
      }
    }
  } else {
    constexpr int kStagingRow = kInner + 4;
    __syncwarp();  // earlier reads of the staging are over
#pragma unroll
    for (int j = 0; j < kInner / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        staging[row_of(e) * kStagingRow + 8 * j + column_of(e)] = p.c[j][e];
      }
    }
    __syncwarp();
    const float* upper = staging + row_of(0) * kStagingRow;
    const float* lower = staging + row_of(2) * kStagingRow;
    for (int k = 0; k < kInner; ++k) {
      const float high = upper[k], low = lower[k];
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        const auto x = *reinterpret_cast<const float2*>(b + k * kRow + 8 * j + column_of(0));
        sum.c[j][0] = fmadd(high, x.x, sum.c[j][0]);
        sum.c[j][1] = fmadd(high, x.y, sum.c[j][1]);
        sum.c[j][2] = fmadd(low, x.x, sum.c[j][2]);
        sum.c[j][3] = fmadd(low, x.y, sum.c[j][3]);
      }
    }
  }
}

/// The (tokens, dim) matrix of one head and sample in memory, rows `ld` apart. `whole_vectors`:
/// rows begin on 16 bytes and hold whole vectors.
template <typename T>
struct HeadMatrix {
  T* data;
  std::int64_t ld;
  int tokens, dim;
  bool whole_vectors;
};

/// Begins to copy rows [first, first + kRows) to a tile; what is not in the matrix becomes 0. All
/// threads of the block take part; the copies of one tile or more are then committed.
template <typename T, int kDim, int kRows>
__device__ __forceinline__ void begin_tile(T* tile, const HeadMatrix<const T>& x, int first) {
  constexpr int kVectors = kDim / kVector<T>;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kVectors;
       i += static_cast<int>(blockDim.x)) {
    const int row = i / kVectors, column = i % kVectors * kVector<T>;
    T* to = tile + row * kPitch<T, kDim> + column;
    const bool in_rows = first + row < x.tokens;
    const T* from = x.data + (first + row) * x.ld + column;
    if (x.whole_vectors) {
      const bool present = in_rows && column < x.dim;
      copy_async(to, present ? from : x.data, present);
    } else {
#pragma unroll
      for (int e = 0; e < kVector<T>; ++e) to[e] = in_rows && column + e < x.dim ? from[e] : T();
    }
  }
}

template <typename T>
__device__ __forceinline__ void store_pair(T* p, float x, float y) {
  if constexpr (sizeof(T) == 2) {
    *reinterpret_cast<std::uint32_t*>(p) = pack<T>(x, y);
  } else {
    *reinterpret_cast<float2*>(p) = make_float2(x, y);
  }
}

/// Writes a warp's results, times `factor`, to rows [first, first + 16) and columns from
/// `first_column` on of a matrix, or adds them to what is there.
template <typename T, int kColumns>
__device__ __forceinline__ void store_tile(const WarpTile<kColumns>& tile, const HeadMatrix<T>& to,
                                           int first, int first_column, const float (&factor)[2],
                                           bool add = false) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + row_of(2 * half);
    if (row >= to.tokens) continue;
    T* out = to.data + row * to.ld;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const int column = first_column + 8 * j + column_of(0);
      float x = tile.c[j][2 * half] * factor[half];
      float y = tile.c[j][2 * half + 1] * factor[half];
      if (add && column < to.dim) x = x + load_one(out + column);
      if (add && column + 1 < to.dim) y = y + load_one(out + column + 1);
      if (to.whole_vectors) {
        if (column < to.dim) store_pair(out + column, x, y);
      } else {
        if (column < to.dim) store_one(out + column, x);
        if (column + 1 < to.dim) store_one(out + column + 1, y);
      }
    }
  }
}

}  // namespace tessera::kernels::cuda
