// Factors of tensors in 1-bit LAMB.
#pragma once

#include "kernels/common/factors.hpp"
#include "kernels/cuda/team.cuh"

namespace tessera::kernels::cuda {

/// A warp for each tensor.
inline __global__ void __launch_bounds__(32)
    average_trust_kernel(const std::int64_t* sums, float* average, const float* verdict,
                         float beta3, float trust_min, float trust_max) {
  if (!applies(verdict)) return;
  __shared__ std::int64_t near[kTensorWords];
  const std::int64_t tensor = blockIdx.x;
  for (auto i = static_cast<int>(threadIdx.x); i < kTensorWords; i += 32)
    near[i] = sums[tensor * kTensorWords + i];
  __syncwarp();
  if (threadIdx.x == 0)
    average[tensor] = averaged_trust(average[tensor], near, beta3, trust_min, trust_max);
}

inline constexpr Team kRatioTeam{256};

struct MomentRatioArrays {
  const float *gradient, *frozen, *verdict;
  float* moment;
  std::int64_t* largest;  // null where nothing is compared
  float beta2;
  std::int64_t n;
  bool wide;
};

inline __global__ void __launch_bounds__(kRatioTeam.block())
    moment_ratio_kernel(MomentRatioArrays a) {
  if (!applies(a.verdict)) return;
  constexpr int V = kRun<float>;
  constexpr Team team = kRatioTeam;
  __shared__ std::int32_t partial[Team::kMostWarps];
  const float coefficient = a.verdict[static_cast<int>(VerdictField::coefficient)];
  const std::int64_t stride = std::int64_t{gridDim.x} * team.block() * V;
  std::int32_t largest = 0;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * team.block() + threadIdx.x) * V; i < a.n;
       i += stride) {
    const int count = a.n - i < V ? static_cast<int>(a.n - i) : V;
    float g[V], v[V], frozen[V];
    load(a.gradient + i, count, a.wide, g);
    load(a.moment + i, count, a.wide, v);
    load(a.frozen + i, count, a.wide, frozen);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      v[j] = moved_moment(v[j], g[j] * coefficient, a.beta2);
      const auto ratio =
          j < count ? std::bit_cast<std::int32_t>(moment_ratio_of(frozen[j], v[j])) : 0;
      largest = ratio > largest ? ratio : largest;
    }
    store(a.moment + i, count, a.wide, v);
  }
  if (a.largest == nullptr) return;
  largest = team.max(largest, partial);
  if (threadIdx.x == 0 && largest > 0) {
    using Word = unsigned long long;  // ratios are 0 at least
    atomicMax(reinterpret_cast<Word*>(a.largest), static_cast<Word>(largest));
  }
}

inline constexpr int kFollowThreads = 128;

inline __global__ void __launch_bounds__(kFollowThreads)
    follow_ratio_kernel(const std::int64_t* largest, float* ratio, const float* verdict,
                        float threshold, float r_min, float r_max, std::int64_t n) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kFollowThreads + threadIdx.x;
  if (t >= n || !applies(verdict)) return;
  ratio[t] = followed_ratio(ratio[t], largest[t], threshold, r_min, r_max);
}

}  // namespace tessera::kernels::cuda
