// Losses of pairs: a block adds up the losses of both samples of its pair, each thread those of
// every so many'th target, and writes the slopes of their targets.
#pragma once

#include "kernels/common/preference.hpp"
#include "kernels/cuda/team.cuh"
#include "kernels/cuda/vec.cuh"

namespace tessera::kernels::cuda {

inline constexpr int kPairThreads = 256;

struct Pairs {
  const float* target_losses;
  const std::int32_t* targets;
  const double* reference;  // null of rewards
  const float* scale;       // null: losses only
  float *losses, *slopes, *statistics;
  std::int64_t tokens, pairs;
  PreferenceTerms terms;
};

inline __global__ void __launch_bounds__(kPairThreads) preference_loss_kernel(Pairs a) {
  __shared__ double shared[3][Team::kMostWarps];
  __shared__ float slopes[2];
  const Team team{kPairThreads};
  const std::int64_t pair = blockIdx.x, first = 2 * pair * a.tokens;
  double log_p[2] = {0, 0}, counted = 0;
  for (int s = 0; s < 2; ++s) {
    for (std::int64_t t = threadIdx.x; t < a.tokens; t += kPairThreads) {
      const std::int64_t at = first + s * a.tokens + t;
      log_p[s] = log_p[s] - static_cast<double>(a.target_losses[at]);
      counted = counted + (a.targets[at] >= 0 ? 1.0 : 0.0);
    }
    log_p[s] = team.sum(log_p[s], shared[s]);
  }
  counted = team.sum(counted, shared[2]);
  if (threadIdx.x == 0) {
    finish_pair(a.terms, a.pairs, pair, log_p, counted > 0, a.reference, a.scale, a.losses,
                a.statistics, [&](std::int64_t s, float slope) { slopes[s] = slope; });
  }
  if (a.scale == nullptr) return;
  __syncthreads();
  for (std::int64_t t = threadIdx.x; t < 2 * a.tokens; t += kPairThreads)
    a.slopes[first + t] = slopes[t < a.tokens ? 0 : 1];
}

template <typename T>
struct ScoreRun {
  Rows<T> logits;
  const std::int32_t* targets;
  float* losses;

  __device__ __forceinline__ void operator()(std::int64_t, std::int64_t r, int) const {
    losses[r] = targets[r] < 0 ? 0.0F : -load_one(logits[r]);
  }
};

template <typename T>
struct ScoreGradientRun {
  const float* slopes;
  Rows<T> logits;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int) const {
    store_one(logits[r] + c, c == 0 ? -slopes[r] : 0.0F);
  }
};

}  // namespace tessera::kernels::cuda
