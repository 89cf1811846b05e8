// Pooling: a block has a strip of a sample's columns, and a warp of it every sixteenth token.
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
  const std::int32_t* documents;
  std::int64_t tokens, columns, strips;  // strips of a sample
  Pooling kind;
  bool wide;
};

template <typename T>
__global__ void __launch_bounds__(kPoolThreads, 2) pool_kernel(PoolRows<T> a) {
  constexpr int V = kPoolRun, kAhead = 8;  // tokens on their way at a time
  __shared__ float parts[kPoolParts][kPoolStrip];
  const auto thread = static_cast<int>(threadIdx.x);
  const int part = thread / 32, first = thread % 32 * V;  // of the strip's columns
  const std::int64_t b = quotient(blockIdx.x, a.strips);
  const std::int64_t c = (blockIdx.x - b * a.strips) * kPoolStrip + first, left = a.columns - c;
  const int count = left < 0 ? 0 : left < V ? static_cast<int>(left) : V;

  const Range pooled = pooled_tokens(a.kind, a.documents, b, a.tokens);
  const T* token = a.x[b * a.tokens + pooled.begin + part] + c;
  const std::int64_t step = kPoolParts * a.x.ld;
  float sum[V] = {};
  for (std::int64_t n = pooled.count() - part; n > 0; n -= kAhead * kPoolParts) {
    RawRun<T, V> run[kAhead];
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
  const float share = pooled_share(pooled);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    float of_column[kPoolParts];
#pragma unroll
    for (int p = 0; p < kPoolParts; ++p) of_column[p] = parts[p][first + i];
    fold_parts(of_column);
    sum[i] = of_column[0] * share;
  }
  store(a.out[b] + c, count, a.wide, sum);
}

template <typename T>
struct PoolBackwardRun {
  static constexpr int V = kRun<T>;
  Rows<T> d_out, d_x;
  const std::int32_t* documents;
  std::int64_t tokens;
  Pooling kind;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    const std::int64_t b = quotient(r, tokens), t = r - b * tokens;
    const Range pooled = pooled_tokens(kind, documents, b, tokens);
    const bool is_pooled = t >= pooled.begin && t < pooled.end;
    const float share = pooled_share(pooled);
    float d[V] = {};
    if (is_pooled) load(d_out[b] + c, count, wide, d);
#pragma unroll
    for (int i = 0; i < V; ++i) d[i] = d[i] * share;
    store(d_x[r] + c, count, wide, d);
  }
};

}  // namespace tessera::kernels::cuda
