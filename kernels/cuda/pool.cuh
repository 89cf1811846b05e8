// Pooling: a thread has a run of columns, and goes over the tokens of its sample.
#pragma once

#include "kernels/common/pool.hpp"
#include "kernels/cuda/vec.cuh"

namespace tessera::kernels::cuda {

template <typename T>
struct PoolRun {
  static constexpr int V = kRun<T>;
  Rows<T> x, out;
  const std::int32_t* documents;
  std::int64_t tokens;
  Pooling kind;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t b, std::int64_t c, int count) const {
    const Range pooled = pooled_tokens(kind, documents, b, tokens);
    const T* token = x[b * tokens + pooled.begin] + c;
    float sum[V], v[V];
    load(token, count, wide, sum);
    for (std::int64_t left = pooled.count() - 1; left > 0; --left) {
      token += x.ld;
      load(token, count, wide, v);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] = sum[i] + v[i];
    }
    const float share = pooled_share(pooled);
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] = sum[i] * share;
    store(out[b] + c, count, wide, sum);
  }
};

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
