// Pooling: a block has a strip of a document's columns, and a warp of it every sixteenth token.
#pragma once

#include "kernels/common/pool.hpp"
#include "kernels/cuda/vec.cuh"

namespace tessera::kernels::cuda {

inline constexpr int kPoolThreads = 32 * kPoolParts;
inline constexpr int kPoolRun = 2;  // columns of a thread: narrow strips, so many blocks
inline constexpr std::int64_t kPoolStrip = 32 * kPoolRun;

template <typename T>
struct PoolRows {
  Rows<T> x, out;
  PooledDocuments documents;
  std::int64_t columns, strips;  // of a document
  bool wide;
};

template <typename T>
__global__ void __launch_bounds__(kPoolThreads, 2) pool_kernel(PoolRows<T> a) {
  constexpr int V = kPoolRun, kAhead = 6;  // tokens on their way at a time
  __shared__ float parts[kPoolParts][kPoolStrip];
  const auto thread = static_cast<int>(threadIdx.x);
  const int part = thread / 32, first = thread % 32 * V;  // of the strip's columns
  const std::int64_t row = quotient(blockIdx.x, a.strips), b = quotient(row, a.documents.most);
  const std::int64_t c = (blockIdx.x - row * a.strips) * kPoolStrip + first, left = a.columns - c;
  const int count = left < 0 ? 0 : left < V ? static_cast<int>(left) : V;

  const Range pooled = a.documents.of_output(row);
  const T* token = a.x[b * a.documents.tokens + pooled.begin + part] + c;
  const std::int64_t step = kPoolParts * a.x.ld;
  float sum[V] = {};
  for (std::int64_t n = pooled.count() - part; n > 0; n -= kAhead * kPoolParts) {
    RawRun<T, V> run[kAhead] = {};
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (k * kPoolParts < n) run[k].read(token + k * step, count, a.wide);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (k * kPoolParts >= n) continue;
      float v[V];
      run[k].unpack(v);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] = sum[i] + v[i];
    }
    token += kAhead * step;
  }
#pragma unroll
  for (int i = 0; i < V; ++i) parts[part][first + i] = sum[i];
  __syncthreads();
  if (part > 0) return;
  const float share = pooled_share(pooled.count());
#pragma unroll
  for (int i = 0; i < V; ++i) {
    float of_column[kPoolParts];
#pragma unroll
    for (int p = 0; p < kPoolParts; ++p) of_column[p] = parts[p][first + i];
    fold_parts(of_column);
    sum[i] = of_column[0] * share;
  }
  store(a.out[row] + c, count, a.wide, sum);
}

template <typename T>
struct PoolBackwardRun {
  static constexpr int V = kRun<T>;
  Rows<T> d_out, d_x;
  PooledDocuments documents;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    const std::int64_t b = quotient(r, documents.tokens);
    const auto of = documents.of_token(b, r - b * documents.tokens);
    const float share = pooled_share(of.tokens);
    float d[V] = {};
    if (of.row >= 0) load(d_out[of.row] + c, count, wide, d);
#pragma unroll
    for (int i = 0; i < V; ++i) d[i] = d[i] * share;
    store(d_x[r] + c, count, wide, d);
  }
};

}  // namespace tessera::kernels::cuda
