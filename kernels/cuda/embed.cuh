// Embedding of tokens and positions.
#pragma once

#include "kernels/common/sight.hpp"
#include "kernels/cuda/dropout.cuh"

namespace tessera::kernels::cuda {

/// Documents of samples of `tokens`, or null.
struct SampleDocuments {
  const std::int32_t* data = nullptr;
  std::int64_t tokens = 0;
};

/// out = dropout(x + the row of its position), for rows of (B, T, C); P is the table's type.
template <typename P, typename O>
struct PositionRun {
  Rows<P> table;  // absent: x alone
  Rows<O> out;
  std::int64_t tokens, first_position;
  SampleDocuments documents;
  const CachedSample* cached;  // or null
  DropoutMask dropout;
  bool wide;

  __device__ __forceinline__ std::int64_t position_of(std::int64_t r) const {
    const std::int64_t sample = quotient(r, tokens), t = first_position + r - sample * tokens;
    if (cached != nullptr) return kernels::position_of(cached[sample], t);
    return t - document_of(documents.data, sample, t, documents.tokens).begin;
  }
  template <int V>
  __device__ __forceinline__ void finish(std::int64_t r, std::int64_t c, int count,
                                         float (&x)[V]) const {
    if (table.data != nullptr) {
      float p[V];
      load(table[position_of(r)] + c, count, wide, p);
#pragma unroll
      for (int i = 0; i < V; ++i) x[i] = x[i] + p[i];
    }
    dropout.apply(r, c, x);
    store(out[r] + c, count, wide, x);
  }
};

template <typename T, typename O>
struct EmbedRun {
  static constexpr int V = kRun<T, O>;
  const std::int32_t* tokens;
  Rows<T> table;
  std::int64_t first_token, here, vocabulary;
  PositionRun<T, O> position;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    const std::int64_t token = tokens[r], row = token - first_token;
    float x[V];
    if (row >= 0 && row < here) {
      load(table[row] + c, count, position.wide, x);
    } else {  // another part's, or nobody's
      const bool known = token >= 0 && token < vocabulary;
#pragma unroll
      for (int i = 0; i < V; ++i) x[i] = known ? 0.0F : __builtin_nanf("");
    }
    position.finish(r, c, count, x);
  }
};

template <typename T>
struct AddPositionsRun {
  static constexpr int V = kRun<float, T>;
  Rows<float> x;
  PositionRun<T, T> position;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float v[V];
    load(x[r] + c, count, position.wide, v);
    position.finish(r, c, count, v);
  }
};

/// d_position_table[t] (+)= sum over samples of d, in their order; rows without a position get 0.
template <typename T, typename G>
struct PositionGradientRun {
  static constexpr int V = kRun<T, G>;
  Rows<T> d;
  Rows<G> out;
  std::int64_t samples, tokens;
  DropoutMask dropout;
  bool add, wide;

  __device__ __forceinline__ void operator()(std::int64_t t, std::int64_t c, int count) const {
    float sum[V] = {}, v[V];
    for (std::int64_t b = 0; t < tokens && b < samples; ++b) {
      const std::int64_t r = b * tokens + t;
      load(d[r] + c, count, wide, v);
      dropout.apply(r, c, v);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] = sum[i] + v[i];
    }
    if (add) {
      load(out[t] + c, count, wide, v);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] = v[i] + sum[i];
    }
    store(out[t] + c, count, wide, sum);
  }
};

}  // namespace tessera::kernels::cuda
