// The verdict on a step, and an optimizer's update in one pass or two.
#pragma once

#include "kernels/common/optimizer_steps.hpp"
#include "kernels/common/verdict.hpp"
#include "kernels/cuda/exact_sum.cuh"

namespace tessera::kernels::cuda {

/// One warp.
inline __global__ void __launch_bounds__(32)
    verdict_kernel(const std::int64_t* squares, const std::int64_t* targets,
                   std::int64_t all_targets, const float* scalars, double clip_norm,
                   float* verdict) {
  __shared__ std::int64_t near[kExactSumWords];
  if (threadIdx.x < kExactSumWords) near[threadIdx.x] = squares[threadIdx.x];
  __syncwarp();
  if (threadIdx.x != 0) return;
  const double factor =
      mean_factor(scalars[static_cast<int>(StepScalar::unscale)], targets, all_targets);
  const VerdictNumbers v = verdict_of(near, factor, clip_norm);
  verdict[static_cast<int>(VerdictField::apply)] = v.apply;
  verdict[static_cast<int>(VerdictField::coefficient)] = v.coefficient;
}

/// A tensor's factors in place of its ratio, of the rules that have them.
struct NoFactors {};
struct Factors {
  const float *average, *ratio;
};
template <typename Step>
using FactorsOf = std::conditional_t<Step::kRule == UpdateRule::frozen_lamb, Factors, NoFactors>;

/// `G`: the type of what is read beside weights and state, a gradient or directions.
template <typename M, typename G, typename P, int S>
struct UpdateArrays {
  const G* along;  // null where directions are 0
  float* master;
  M* state[S > 0 ? S : 1];
  float* average;  // null where none is kept
  P* parameter;    // null where master is what forward uses; of a pass that makes them, directions
  const float *scalars, *verdict;
  std::int64_t* sums;  // null where there are none
  UpdateSettings settings;
  std::int64_t n;
  bool wide;
};

inline constexpr int kUpdateThreads = 256;

/// trust_of, computed by one thread for all of its block.
__device__ __forceinline__ float block_trust(const std::int64_t* sums,
                                             const UpdateSettings& settings) {
  __shared__ std::int64_t near[kTensorWords];
  __shared__ float trust;
  if (threadIdx.x < kTensorWords) near[threadIdx.x] = sums[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) trust = trust_of(near, settings);
  __syncthreads();
  return trust;
}

/// What a rule multiplies an update with, beside the learning rate.
template <typename Step, typename Arrays>
__device__ __forceinline__ float factor_of(const Arrays& a, const FactorsOf<Step>& factors,
                                           bool apply) {
  if constexpr (pass_of(Step::kRule) == UpdatePass::second) {
    return apply ? block_trust(a.sums, a.settings) : 1.0F;
  } else if constexpr (Step::kRule == UpdateRule::frozen_lamb) {
    return *factors.average * *factors.ratio;
  } else {
    return 1.0F;
  }
}

template <typename Step, typename M, typename G, typename P>
__global__ void __launch_bounds__(kUpdateThreads)
    update_kernel(UpdateArrays<M, G, P, Step::kStates> a, FactorsOf<Step> factors) {
  constexpr int V = kRun<G, P>, S = Step::kStates;
  const bool apply = a.verdict[static_cast<int>(VerdictField::apply)] != 0.0F;
  if (!apply && a.parameter == nullptr) return;
  const float coefficient = a.verdict[static_cast<int>(VerdictField::coefficient)];
  constexpr UpdatePass kPass = pass_of(Step::kRule);
  constexpr bool kOnly = kPass == UpdatePass::only;
  const Step step(a.settings, a.scalars, factor_of<Step>(a, factors, apply));
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
    if constexpr (kOnly) load(a.along + i, count, a.wide, g);
#pragma unroll
    for (int s = 0; s < S; ++s) load(a.state[s] + i, count, a.wide, state[s]);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      float now[S];
#pragma unroll
      for (int s = 0; s < S; ++s) now[s] = state[s][j];
      if constexpr (kOnly) {
        step(g[j] * coefficient, w[j], now);
        round_state<M>(now, w[j], salt);
#pragma unroll
        for (int s = 0; s < S; ++s) state[s][j] = now[s];
      } else {
        step(0.0F, w[j], now);  // without a gradient
      }
    }
    if constexpr (kOnly) {
#pragma unroll
      for (int s = 0; s < S; ++s) store(a.state[s] + i, count, a.wide, state[s]);
    }
    store(a.master + i, count, a.wide, w);
    if (a.average != nullptr) {
      float average[V];
      load(a.average + i, count, a.wide, average);
#pragma unroll
      for (int j = 0; j < V; ++j) average[j] = averaged(average[j], w[j], a.settings.average_decay);
      store(a.average + i, count, a.wide, average);
    }
    if (a.parameter != nullptr) store(a.parameter + i, count, a.wide, w);
  }
}

/// Weights move along directions, which are 0 where there are none.
template <typename Step, typename G, typename P>
__global__ void __launch_bounds__(kUpdateThreads)
    move_kernel(UpdateArrays<float, G, P, Step::kStates> a) {
  constexpr int V = kRun<G, P>;
  const bool apply = applies(a.verdict);
  if (!apply && a.parameter == nullptr) return;
  const Step step(a.settings, a.scalars, 1);
  const std::int64_t stride = std::int64_t{gridDim.x} * kUpdateThreads * V;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * kUpdateThreads + threadIdx.x) * V; i < a.n;
       i += stride) {
    const int count = a.n - i < V ? static_cast<int>(a.n - i) : V;
    float w[V], along[V] = {};
    load(a.master + i, count, a.wide, w);
    if (apply) {
      if (a.along != nullptr) load(a.along + i, count, a.wide, along);
#pragma unroll
      for (int j = 0; j < V; ++j) step(along[j], w[j]);
      store(a.master + i, count, a.wide, w);
      if (a.average != nullptr) {
        float average[V];
        load(a.average + i, count, a.wide, average);
#pragma unroll
        for (int j = 0; j < V; ++j)
          average[j] = averaged(average[j], w[j], a.settings.average_decay);
        store(a.average + i, count, a.wide, average);
      }
    }
    if (a.parameter != nullptr) store(a.parameter + i, count, a.wide, w);
  }
}

/// A run of V elements of a first pass: state moves; `w` and `direction` are for the sums.
template <int V, typename Step, typename M, typename G, typename P>
__device__ __forceinline__ void first_pass_of_run(const UpdateArrays<M, G, P, Step::kStates>& a,
                                                  const Step& step, std::int64_t i, int count,
                                                  float* w, float* direction) {
  constexpr int S = Step::kStates;
  const float coefficient = a.verdict[static_cast<int>(VerdictField::coefficient)];
  const std::uint32_t salt = salt_of(a.scalars);
  float g[V], master[V], state[S][V];
  load(a.master + i, count, a.wide, master);
  load(a.along + i, count, a.wide, g);
#pragma unroll
  for (int s = 0; s < S; ++s) load(a.state[s] + i, count, a.wide, state[s]);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    float now[S];
#pragma unroll
    for (int s = 0; s < S; ++s) now[s] = state[s][j];
    step(g[j] * coefficient, master[j], now);
    round_state<M>(now, master[j], salt);
#pragma unroll
    for (int s = 0; s < S; ++s) state[s][j] = now[s];
    w[j] = master[j];
    direction[j] = step.direction(master[j], now);
  }
#pragma unroll
  for (int s = 0; s < S; ++s) store(a.state[s] + i, count, a.wide, state[s]);
}

/// A warp takes tiles as of an exact sum (exact_sum.cuh).
template <typename Step, typename M, typename G, typename P>
__global__ void __launch_bounds__(32 * kExactWarps)
    first_update_kernel(UpdateArrays<M, G, P, Step::kStates> a) {
  if (!applies(a.verdict)) return;
  constexpr int V = kRun<G, P>;
  __shared__ std::int64_t words[kExactWarps][kTensorWords];
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  for (int i = lane; i < kTensorWords; i += 32) words[warp][i] = 0;
  __syncwarp();
  const Step step(a.settings, a.scalars, 1);
  const std::int64_t stride = std::int64_t{gridDim.x} * kExactWarps * kExactTile;
  for (std::int64_t tile = (std::int64_t{blockIdx.x} * kExactWarps + warp) * kExactTile; tile < a.n;
       tile += stride) {
    float w[kExactPerThread], direction[kExactPerThread];
#pragma unroll
    for (int k = 0; k < kExactPerThread / V; ++k) {
      const std::int64_t i = tile + (k * 32 + lane) * V, left = a.n - i;
      first_pass_of_run<V>(a, step, i,
                           left < 0   ? 0
                           : left < V ? static_cast<int>(left)
                                      : V,
                           w + k * V, direction + k * V);
    }
    if (a.sums == nullptr) continue;
    add_warp_values(w, true, words[warp]);
    add_warp_values(direction, true, words[warp] + kExactSumWords);
  }
  __syncthreads();
  if (a.sums == nullptr || thread >= kTensorWords) return;
  std::int64_t sum = 0;
  for (int i = 0; i < kExactWarps; ++i) sum += words[i][thread];
  if (sum != 0) atomicAdd(reinterpret_cast<Atomic*>(a.sums) + thread, static_cast<Atomic>(sum));
}

/// State moves; directions are made where there is room for them, and are 0 where the step is
/// skipped.
template <typename Step, typename M, typename G, typename D>
__global__ void __launch_bounds__(kUpdateThreads)
    direct_kernel(UpdateArrays<M, G, D, Step::kStates> a) {
  constexpr int V = kRun<G, D>, S = Step::kStates;
  const bool apply = applies(a.verdict);
  if (!apply && a.parameter == nullptr) return;
  const float coefficient = a.verdict[static_cast<int>(VerdictField::coefficient)];
  const Step step(a.settings, a.scalars, 1);
  const std::uint32_t salt = salt_of(a.scalars);
  const std::int64_t stride = std::int64_t{gridDim.x} * kUpdateThreads * V;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * kUpdateThreads + threadIdx.x) * V; i < a.n;
       i += stride) {
    const int count = a.n - i < V ? static_cast<int>(a.n - i) : V;
    float direction[V] = {};
    if (apply) {
      float g[V], w[V], state[S][V];
      load(a.along + i, count, a.wide, g);
      load(a.master + i, count, a.wide, w);
#pragma unroll
      for (int s = 0; s < S; ++s) load(a.state[s] + i, count, a.wide, state[s]);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        float now[S];
#pragma unroll
        for (int s = 0; s < S; ++s) now[s] = state[s][j];
        direction[j] = step(g[j] * coefficient, now);
        round_state<M>(now, w[j], salt);
#pragma unroll
        for (int s = 0; s < S; ++s) state[s][j] = now[s];
      }
#pragma unroll
      for (int s = 0; s < S; ++s) store(a.state[s] + i, count, a.wide, state[s]);
    }
    if (a.parameter != nullptr) store(a.parameter + i, count, a.wide, direction);
  }
}

}  // namespace tessera::kernels::cuda
