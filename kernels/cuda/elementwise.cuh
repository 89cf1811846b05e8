// Rows in turn, conversion and sums over parts.
#pragma once

#include "kernels/api/elementwise.hpp"
#include "kernels/common/tree.hpp"
#include "kernels/common/verdict.hpp"
#include "kernels/cuda/vec.cuh"

namespace tessera::kernels::cuda {

inline constexpr int kTakeRowThreads = 1024;

/// One block, which is where the number of the next row is read and written. A micro-batch's row is
/// some tens of kilobytes.
inline __global__ void __launch_bounds__(kTakeRowThreads)
    take_row_kernel(const uint4* x, std::int64_t rows, std::int64_t* next, uint4* out,
                    std::int64_t vectors) {
  const uint4* row = x + *next * vectors;
  for (std::int64_t i = threadIdx.x; i < vectors; i += kTakeRowThreads) out[i] = row[i];
  __syncthreads();
  if (threadIdx.x == 0) *next = (*next + 1) % rows;
}

template <typename T, typename G>
struct ConvertRun {
  static constexpr int V = kRun<T, G>;
  const T* x;
  G* out;
  std::int64_t x_ld, out_ld;  // between rows
  const float* verdict;
  bool add, wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    if (!applies(verdict)) return;
    const T* from = x + r * x_ld + c;
    G* to = out + r * out_ld + c;
    float v[V], before[V];
    load(from, count, wide, v);
    if (add) {
      load(to, count, wide, before);
#pragma unroll
      for (int j = 0; j < V; ++j) v[j] = before[j] + v[j];
    }
    store(to, count, wide, v);
  }
};

template <typename T>
struct ScaleRun {
  static constexpr int V = kRun<T>;
  Rows<T> x, out;
  float factor;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float v[V];
    load(x[r] + c, count, wide, v);
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] = v[i] * factor;
    store(out[r] + c, count, wide, v);
  }
};

template <typename T>
struct OrderChunksRun {
  static constexpr int V = kRun<T>;
  Rows<T> x, out;
  ZigzagChunks chunks;
  std::int64_t samples, tokens;
  OrderChunks::To to;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    const std::int64_t other = chunks.row_by_tokens(r, samples, tokens);
    const bool to_tokens = to == OrderChunks::To::tokens;
    float v[V];
    load(x[to_tokens ? r : other] + c, count, wide, v);
    store(out[to_tokens ? other : r] + c, count, wide, v);
  }
};

struct BlendRun {
  static constexpr int V = kRun<float>;
  const float* y;
  float* out;
  float keep, add;
  const float *scalars, *verdict;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t, std::int64_t c, int count) const {
    if (!applies(verdict)) return;
    const float factor = blend_factor(add, scalars, verdict);
    float x[V], before[V];
    load(y + c, count, wide, x);
    load(out + c, count, wide, before);
#pragma unroll
    for (int j = 0; j < V; ++j) before[j] = fmadd(before[j], keep, x[j] * factor);
    store(out + c, count, wide, before);
  }
};

/// Levels of a tree whose partial sums fit registers.
inline constexpr int kTreeLevels = 12;
inline constexpr std::int64_t kMostParts = (std::int64_t{1} << kTreeLevels) - 1;

struct FourFloats {
  float v[4];
  friend __device__ __forceinline__ FourFloats operator+(const FourFloats& a, const FourFloats& b) {
    return {{a.v[0] + b.v[0], a.v[1] + b.v[1], a.v[2] + b.v[2], a.v[3] + b.v[3]}};
  }
};

template <typename P, typename B, typename T>
struct TreeSumRun {
  static constexpr int V = 4;
  const P* parts;  // (n, elements)
  std::int64_t n, elements, columns;
  const B* bias;
  T* out;
  bool add, wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    const std::int64_t e = r * columns + c;
    FourFloats sum = tree_sum<kTreeLevels>(n, [&](std::int64_t p) {
      FourFloats term;
      load(parts + p * elements + e, count, wide, term.v);
      return term;
    });
    FourFloats other;
    if (bias != nullptr) {
      load(bias + c, count, wide, other.v);
      sum = sum + other;
    }
    if (add) {
      load(out + e, count, wide, other.v);
      sum = other + sum;
    }
    store(out + e, count, wide, sum.v);
  }
};

}  // namespace tessera::kernels::cuda
