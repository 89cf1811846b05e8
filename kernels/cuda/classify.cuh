// Softmax and cross-entropy: a block goes over its row once for the largest logit and the sum of
// exponentials, kept together by rescaling the sum whenever a larger logit comes, and once more to
// write gradients.
#pragma once

#include "kernels/common/classifier.hpp"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/team.cuh"

namespace tessera::kernels::cuda {

/// The row's largest logit (0 in `shift` where none is above -inf) and its sums: of exp(logit -
/// shift), and of the logits themselves.
struct RowSums {
  float top, shift;
  double exponentials, logits;
};

template <bool kCapped>
using Cap = LogitCap<float, kCapped>;

template <typename T, bool kCapped>
__device__ __forceinline__ RowSums row_sums(const Team& team, const T* x, std::int64_t tokens,
                                            bool wide, const Cap<kCapped>& cap) {
  constexpr int V = kRun<T>;
  constexpr float kNone = -__builtin_inff();
  __shared__ float tops[Team::kMostWarps];
  __shared__ double sums[2][Team::kMostWarps];
  float top = kNone, sum = 0, logits = 0;
  team.template each_run<V, 0>(tokens, [&](int, std::int64_t c, int count) {
    float v[V], most = kNone;
    load(x + c, count, wide, v);
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] = cap.value(v[i]);
#pragma unroll
    for (int i = 0; i < V; ++i) most = i < count && v[i] > most ? v[i] : most;
    if (most > top) {
      if (top > kNone) sum = sum * exp_of(top - most);
      top = most;
    }
    const float shift = top > kNone ? top : 0.0F;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sum = sum + (i < count ? exp_of(v[i] - shift) : 0.0F);
      logits = logits + (i < count ? v[i] : 0.0F);
    }
  });
  const float most = team.max(top, tops);
  if (top > kNone) sum = sum * exp_of(top - most);
  return {.top = most,
          .shift = most > kNone ? most : 0.0F,
          .exponentials = team.sum(static_cast<double>(sum), sums[0]),
          .logits = team.sum(static_cast<double>(logits), sums[1])};
}

template <typename T>
struct ClassifyRows {
  Rows<T> logits;
  const std::int32_t* targets;
  float* losses;
  const float* scale;  // null: losses only
  Team team;           // a block
  std::int64_t columns, vocab;
  float soft_cap;
  LossTerms terms;
  bool wide;
};

template <typename T, bool kCapped>
__global__ void __launch_bounds__(Team::kMostThreads) classify_kernel(ClassifyRows<T> a) {
  constexpr int V = kRun<T>;
  const Cap<kCapped> cap(a.soft_cap);
  T* x = a.logits[blockIdx.x];
  const std::int64_t target = a.targets[blockIdx.x];
  const float nan = __builtin_nanf("");
  const float target_logit = target < 0         ? 0.0F
                             : target < a.vocab ? cap.value(load_one(x + target))
                                                : nan;  // no such token
  // Its barriers: the target was read.
  const RowSums row = row_sums(a.team, x, a.vocab, a.wide, cap);
  const double lse = std::log(row.exponentials) + static_cast<double>(row.shift);
  if (threadIdx.x == 0) {
    const float loss =
        loss_of(a.terms, a.vocab, lse, static_cast<double>(target_logit), row.logits);
    a.losses[blockIdx.x] = target < 0 ? 0.0F : loss;
  }
  if (a.scale == nullptr) return;
  const LossSlope slope(a.terms, a.vocab);
  const float scale = target < a.vocab ? *a.scale : nan;
  const auto weight =
      static_cast<float>(static_cast<double>(scale) * slope.of_softmax(lse) / row.exponentials);
  const float everywhere = scale * slope.everywhere, at_target = scale * slope.at_target;
  a.team.template each_run<V, 0>(a.columns, [&](int, std::int64_t c, int count) {
    float v[V];
    load(x + c, count, a.wide, v);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float raw = v[i];
      v[i] = exp_of(cap.value(raw) - row.shift) * weight - everywhere;
      if (c + i == target) v[i] = v[i] - at_target;
      v[i] = cap.times_slope(v[i], raw);
      if (target < 0 || c + i >= a.vocab) v[i] = 0;
    }
    store(x + c, count, a.wide, v);
  });
}

template <typename T>
struct ClassifyPartRows {
  Rows<T> logits;
  const std::int32_t* targets;
  float* stats;
  Team team;                         // a block
  std::int64_t first_token, tokens;  // of this part
  std::int64_t vocab;
  float soft_cap;
  bool wide;
};

template <typename T, bool kCapped>
__global__ void __launch_bounds__(Team::kMostThreads) classify_part_kernel(ClassifyPartRows<T> a) {
  const Cap<kCapped> cap(a.soft_cap);
  const T* x = a.logits[blockIdx.x];
  const std::int64_t target = a.targets[blockIdx.x], here = target - a.first_token;
  const RowSums row = row_sums(a.team, x, a.tokens, a.wide, cap);
  if (threadIdx.x != 0) return;
  float* stats = a.stats + kPartStats * std::int64_t{blockIdx.x};
  stats[0] = row.top;
  stats[1] = static_cast<float>(row.exponentials);
  stats[2] = here >= 0 && here < a.tokens ? cap.value(load_one(x + here)) : 0.0F;
  if (target >= a.vocab) stats[2] = __builtin_nanf("");  // no such token
  stats[3] = static_cast<float>(row.logits);
}

inline constexpr int kLossThreads = 128;

inline __global__ void __launch_bounds__(kLossThreads)
    classify_loss_kernel(const float* stats, const std::int32_t* targets, std::int64_t parts,
                         std::int64_t rows, std::int64_t vocab, LossTerms terms, float* losses,
                         float* lse) {
  const std::int64_t r = std::int64_t{blockIdx.x} * kLossThreads + threadIdx.x;
  if (r >= rows) return;
  loss_of_parts<kTreeLevels>(stats + kPartStats * r, parts, kPartStats * rows, terms, vocab,
                             targets[r] < 0, losses[r], lse[r]);
}

/// A row for each thread.
template <typename T>
__global__ void __launch_bounds__(kLossThreads)
    confusion_kernel(Rows<T> logits, const std::int32_t* targets, std::int64_t rows,
                     std::int64_t classes, std::int64_t* counts) {
  using Atomic = unsigned long long;
  const std::int64_t r = std::int64_t{blockIdx.x} * kLossThreads + threadIdx.x;
  if (r >= rows || targets[r] < 0 || targets[r] >= classes) return;
  const T* row = logits[r];
  const std::int64_t predicted =
      first_largest(classes, [row](std::int64_t i) { return load_one(row + i); });
  atomicAdd(reinterpret_cast<Atomic*>(counts) + targets[r] * classes + predicted, Atomic{1});
}

template <typename T, bool kCapped>
struct ClassifyGradientRun {
  static constexpr int V = kRun<T>;
  Rows<T> logits;
  const std::int32_t* targets;
  const float *lse, *scale;
  std::int64_t first_token, tokens;
  float soft_cap;
  LossSlope slope;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    T* x = logits[r] + c;
    const std::int64_t target = targets[r], hit = target - first_token - c;
    const float row_lse = lse[r], factor = *scale;
    const auto softmax = static_cast<float>(slope.of_softmax(static_cast<double>(row_lse)));
    const Cap<kCapped> cap(soft_cap);
    float v[V];
    load(x, count, wide, v);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float raw = v[i];
      const float d = exp_of(cap.value(raw) - row_lse) * softmax - slope.everywhere;
      v[i] = cap.times_slope((i == hit ? d - slope.at_target : d) * factor, raw);
      if (target < 0 || c + i >= tokens) v[i] = 0;
    }
    store(x, count, wide, v);
  }
};

template <typename T>
struct SoftCapRun {
  static constexpr int V = kRun<T>;
  Rows<T> x, out;
  float most;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    const Cap<true> cap(most);
    float v[V];
    load(x[r] + c, count, wide, v);
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] = cap.value(v[i]);
    store(out[r] + c, count, wide, v);
  }
};

}  // namespace tessera::kernels::cuda
