// The verdict on a step, and Adam's update in one pass.
#pragma once

#include "kernels/common/adam.hpp"
#include "kernels/common/verdict.hpp"
#include "kernels/cuda/vec.cuh"

namespace tessera::kernels::cuda {

/// One warp.
inline __global__ void __launch_bounds__(32)
    verdict_kernel(const std::int64_t* squares, const float* scalars, double clip_norm,
                   float* verdict) {
  __shared__ std::int64_t near[kExactSumWords];
  if (threadIdx.x < kExactSumWords) near[threadIdx.x] = squares[threadIdx.x];
  __syncwarp();
  if (threadIdx.x != 0) return;
  const VerdictNumbers v =
      verdict_of(near, scalars[static_cast<int>(StepScalar::unscale)], clip_norm);
  verdict[static_cast<int>(VerdictField::apply)] = v.apply;
  verdict[static_cast<int>(VerdictField::coefficient)] = v.coefficient;
}

template <typename G, typename P>
struct AdamArrays {
  const G* gradient;
  float *master, *m, *v;
  P* parameter;  // null where master is what forward uses
  const float *scalars, *verdict;
  AdamSettings settings;
  std::int64_t n;
  bool wide;
};

inline constexpr int kAdamThreads = 256;

template <typename G, typename P>
__global__ void __launch_bounds__(kAdamThreads) adam_kernel(AdamArrays<G, P> a) {
  constexpr int V = kRun<G, P>;
  if (a.verdict[static_cast<int>(VerdictField::apply)] == 0.0F) return;
  const AdamNumbers numbers = adam_numbers(a.settings, a.scalars, a.verdict);
  const std::int64_t step = std::int64_t{gridDim.x} * kAdamThreads * V;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * kAdamThreads + threadIdx.x) * V; i < a.n;
       i += step) {
    const int count = a.n - i < V ? static_cast<int>(a.n - i) : V;
    float g[V], w[V], m[V], v[V];
    load(a.gradient + i, count, a.wide, g);
    load(a.master + i, count, a.wide, w);
    load(a.m + i, count, a.wide, m);
    load(a.v + i, count, a.wide, v);
#pragma unroll
    for (int j = 0; j < V; ++j) adam_step(numbers, g[j], w[j], m[j], v[j]);
    store(a.m + i, count, a.wide, m);
    store(a.v + i, count, a.wide, v);
    store(a.master + i, count, a.wide, w);
    if (a.parameter != nullptr) store(a.parameter + i, count, a.wide, w);
  }
}

}  // namespace tessera::kernels::cuda
