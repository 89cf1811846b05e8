// A tensor as fp8 codes: its largest magnitude, in parts, then all of it scaled and rounded.
#pragma once

#include "kernels/common/fp8.hpp"
#include "kernels/cuda/scratch.hpp"
#include "kernels/cuda/team.cuh"

namespace tessera::kernels::cuda {

inline constexpr int kLargestThreads = 512;

/// The bits of the largest magnitude among the runs that a block comes to; at most kFp8Parts
/// blocks.
template <typename T>
__global__ void __launch_bounds__(kLargestThreads)
    largest_magnitudes_kernel(Rows<const T> x, std::int64_t rows, std::int64_t columns, bool wide,
                              std::uint32_t* parts) {
  constexpr int V = kRun<T>, kWarps = kLargestThreads / 32;
  __shared__ std::uint32_t of_warp[kWarps];
  const std::int64_t runs = (columns + V - 1) / V, total = rows * runs;
  const bool narrow = total <= 0xffffffff;  // as in map
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kLargestThreads;
  std::uint32_t largest = 0;
#pragma unroll 4
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kLargestThreads + threadIdx.x;
       i < total; i += stride) {
    const std::int64_t row =
        narrow ? static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(runs) : i / runs;
    const std::int64_t column = (i - row * runs) * V, left = columns - column;
    float v[V];
    load(x[row] + column, left < V ? static_cast<int>(left) : V, wide, v);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(v[j]) & 0x7fffffffU;
      largest = bits > largest ? bits : largest;
    }
  }
  largest = __reduce_max_sync(kAllLanes, largest);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < kWarps; ++w) largest = of_warp[w] > largest ? of_warp[w] : largest;
  parts[blockIdx.x] = largest;
}

inline constexpr int kFp8Tile = 64,
                     kFp8Run = 16;  // rows and columns of a block; a thread's elements
inline constexpr int kFp8Threads = kFp8Tile * kFp8Tile / kFp8Run;
static_assert(kFp8Threads == kFp8Parts && kFp8Run == kFp8Granule);

/// codes (rows, columns), or (columns, rows) turned; both are multiples of a run. `parts` are the
/// largest magnitudes of `count` parts of x.
template <typename T, typename Format, bool kTurned>
__global__ void __launch_bounds__(kFp8Threads)
    to_fp8_kernel(Rows<const T> x, std::int64_t rows, std::int64_t columns, bool wide,
                  const std::uint32_t* parts, int count, std::uint8_t* codes, float* back) {
  constexpr int kWarps = kFp8Threads / 32, kRunWords = kFp8Run / 4;
  __shared__ std::uint32_t of_warp[kWarps];
  const auto thread = static_cast<int>(threadIdx.x);
  std::uint32_t largest = __reduce_max_sync(kAllLanes, thread < count ? parts[thread] : 0U);
  if (thread % 32 == 0) of_warp[thread / 32] = largest;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) largest = of_warp[w] > largest ? of_warp[w] : largest;
  const Fp8Scale scale = fp8_scale<Format>(largest);
  if (blockIdx.x == 0 && thread == 0) *back = scale.back;

  const std::int64_t across = (columns + kFp8Tile - 1) / kFp8Tile;
  const std::int64_t first_row = blockIdx.x / across * kFp8Tile,
                     first_column = blockIdx.x % across * kFp8Tile;
  const int strip = thread / kRunWords, run = thread % kRunWords;
  const std::int64_t row = first_row + strip, column = first_column + run * kFp8Run;
  std::uint32_t words[kRunWords] = {};
  if (row < rows && column < columns) {
    float v[kFp8Run];
    load(x[row] + column, kFp8Run, wide, v);
#pragma unroll
    for (int i = 0; i < kFp8Run; ++i) {
      const std::uint32_t code = fp8_code<Format>(rounded_to_fp8<Format>(v[i] * scale.to));
      words[i / 4] |= code << (i % 4 * 8);
    }
  }
  if constexpr (kTurned) {
    __shared__ std::uint32_t tile[kFp8Tile][kFp8Tile / 4 + 1];
#pragma unroll
    for (int i = 0; i < kRunWords; ++i) tile[strip][run * kRunWords + i] = words[i];
    __syncthreads();
    // From here on a thread has a run of rows.
#pragma unroll
    for (int i = 0; i < kRunWords; ++i) words[i] = 0;
#pragma unroll
    for (int i = 0; i < kFp8Run; ++i) {
      const std::uint32_t code = tile[run * kFp8Run + i][strip / 4] >> (strip % 4 * 8) & 0xffU;
      words[i / 4] |= code << (i % 4 * 8);
    }
    const std::int64_t to_row = first_column + strip, to_column = first_row + run * kFp8Run;
    if (to_row >= columns || to_column >= rows) return;
    *reinterpret_cast<uint4*>(codes + to_row * rows + to_column) =
        make_uint4(words[0], words[1], words[2], words[3]);
  } else {
    if (row >= rows || column >= columns) return;
    *reinterpret_cast<uint4*>(codes + row * columns + column) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

/// y = y + bias.
template <typename T, typename B>
struct AddBiasRun {
  static constexpr int V = kRun<T, B>;
  Rows<T> y;
  const B* bias;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float v[V], b[V];
    load(y[r] + c, count, wide, v);
    load(bias + c, count, wide, b);
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] = v[i] + b[i];
    store(y[r] + c, count, wide, v);
  }
};

}  // namespace tessera::kernels::cuda
