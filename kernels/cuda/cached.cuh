// What a cache has of sequences: tokens are put behind those that their slots have.
#pragma once

#include "kernels/api/cached.hpp"
#include "kernels/cuda/vec.cuh"

namespace tessera::kernels::cuda {

template <typename T>
struct RememberRun {
  static constexpr int V = kRun<T>;
  Rows<T> x, cache;
  const CachedSample* cached;
  std::int64_t tokens, room;  // of a sample, of a slot
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    const std::int64_t b = quotient(r, tokens), t = r - b * tokens;
    const CachedSample sample = cached[b];
    if (t >= sample.count) return;
    float v[V];
    load(x[r] + c, count, wide, v);
    store(cache[sample.slot * room + sample.before + t] + c, count, wide, v);
  }
};

}  // namespace tessera::kernels::cuda
