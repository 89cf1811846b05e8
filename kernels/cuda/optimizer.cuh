// The verdict on a step, and an optimizer's update in one pass.
#pragma once

#include "kernels/common/optimizer_steps.hpp"
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

template <typename M, typename G, typename P, int S>
struct UpdateArrays {
  const G* gradient;
  float* master;
  M* state[S];
  P* parameter;  // null where master is what forward uses
  const float *scalars, *verdict;
  UpdateSettings settings;
  std::int64_t n;
  bool wide;
};

inline constexpr int kUpdateThreads = 256;

template <typename Step, typename M, typename G, typename P>
__global__ void __launch_bounds__(kUpdateThreads)
    update_kernel(UpdateArrays<M, G, P, Step::kStates> a) {
  constexpr int V = kRun<G, P>, S = Step::kStates;
  const bool apply = a.verdict[static_cast<int>(VerdictField::apply)] != 0.0F;
  if (!apply && a.parameter == nullptr) return;
  const float coefficient = a.verdict[static_cast<int>(VerdictField::coefficient)];
  const Step step(a.settings, a.scalars);
  const std::uint32_t salt = salt_of(a.scalars);
  const std::int64_t stride = std::int64_t{gridDim.x} * kUpdateThreads * V;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * kUpdateThreads + threadIdx.x) * V; i < a.n;
       i += stride) {
    const int count = a.n - i < V ? static_cast<int>(a.n - i) : V;
    float g[V], w[V], state[S][V];
    load(a.master + i, count, a.wide, w);
    if (!apply) {
      store(a.parameter + i, count, a.wide, w);
      continue;
    }
    load(a.gradient + i, count, a.wide, g);
#pragma unroll
    for (int s = 0; s < S; ++s) load(a.state[s] + i, count, a.wide, state[s]);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      float now[S];
#pragma unroll
      for (int s = 0; s < S; ++s) now[s] = state[s][j];
      step(g[j] * coefficient, w[j], now);
      round_state<M>(now, w[j], salt);
#pragma unroll
      for (int s = 0; s < S; ++s) state[s][j] = now[s];
    }
#pragma unroll
    for (int s = 0; s < S; ++s) store(a.state[s] + i, count, a.wide, state[s]);
    store(a.master + i, count, a.wide, w);
    if (a.parameter != nullptr) store(a.parameter + i, count, a.wide, w);
  }
}

}  // namespace tessera::kernels::cuda
