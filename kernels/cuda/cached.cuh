// What a cache has of sequences: tokens are put behind those that are there.
#pragma once

#include "kernels/api/cached.hpp"
#include "kernels/cuda/vec.cuh"

namespace tessera::kernels::cuda {

template <typename T>
struct RememberRun {
  static constexpr int V = kRun<T>;
  Rows<T> x, cache;
  const CachedSample* cached;
  const std::int32_t* pages;
  std::int64_t tokens, most, room;  // tokens and pages of a sample, tokens of a page
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    const std::int64_t b = quotient(r, tokens), t = r - b * tokens;
    const CachedSample sample = cached[b];
    if (t >= sample.count) return;
    float v[V];
    load(x[r] + c, count, wide, v);
    const std::int64_t token = sample.before + t, page = quotient(token, room);
    store(cache[pages[b * most + page] * room + token - page * room] + c, count, wide, v);
  }
};

}  // namespace tessera::kernels::cuda
