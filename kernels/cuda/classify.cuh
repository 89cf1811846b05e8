// Softmax and cross-entropy: a block goes over its row once for the largest logit and the sum of
// exponentials, kept together by rescaling the sum whenever a larger logit comes, and once more to
// write gradients. In between the row, or as much of it as fits, stays in shared memory, so that it
// is read from global memory once.
#pragma once

#include "kernels/common/classifier.hpp"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/team.cuh"

namespace tessera::kernels::cuda {

inline constexpr int kRowThreadsAtMost = 1024, kRowWarpsAtMost = kRowThreadsAtMost / 32;
/// Runs of a thread that are on their way at a time; capped logits take longer to compute than to
/// read.
template <bool kCapped>
inline constexpr int kRunsAhead = kCapped ? 2 : 4;

/// e^x for logits of type T. For 16-bit types by the GPU's 2^x, of which denormal results are 0: it
/// errs by 2^-22, as exp_of does, and, as log2 e and the product are rounded, by 1.22 2^-24 |x|
/// besides.
template <typename T>
__device__ __forceinline__ float exp_for(float x) {
  if constexpr (sizeof(T) == 2) {
    return exp2_approximately(x * 1.44269504F);
  } else {
    return exp_of(x);
  }
}

/// The row's largest logit (0 in `shift` where none is above -inf) and its sums: of exp(logit -
/// shift), and of the logits themselves.
struct RowSums {
  float top, shift;
  double exponentials, logits;
};

template <bool kCapped>
using Cap = LogitCap<float, kCapped>;

/// A block's row. The runs that begin before column `held`, a multiple of V, are in shared memory
/// too once row_sums has been over them; a thread finds there what it put there itself.
template <typename T>
struct BlockRow {
  static constexpr int V = kRun<T>;
  T* x;
  int held;
  bool wide;

  /// The logits from column c on of `tokens`; 0 beyond.
  __device__ __forceinline__ void read(int c, int tokens, RawRun<T, V>& run) const {
    run.read(x + c, tokens - c, wide);
  }
  __device__ __forceinline__ void hold(int c, const RawRun<T, V>& run) const {
    if (c < held) run.write(dynamic_shared<T>() + c);
  }
  __device__ __forceinline__ void read_again(int c, int tokens, RawRun<T, V>& run) const {
    if (c < held) {
      run.read(dynamic_shared<T>() + c);
    } else {
      read(c, tokens, run);
    }
  }
};

/// What a thread knows of the logits that it has seen.
template <typename T, bool kCapped>
struct RunningSums {
  static constexpr int V = kRun<T>;
  static constexpr float kNone = -__builtin_inff();
  float top = kNone, sum = 0, logits = 0;

  /// The first `count` of a run; all of them where kWhole says so.
  template <bool kWhole>
  __device__ __forceinline__ void add(const RawRun<T, V>& run, int count, const Cap<kCapped>& cap) {
    float v[V], most = kNone;
    run.unpack(v);
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] = cap.value(v[i]);
#pragma unroll
    for (int i = 0; i < V; ++i) most = kWhole || i < count ? __builtin_fmaxf(most, v[i]) : most;
    if (most > top) {
      if (top > kNone) sum = sum * exp_for<T>(top - most);
      top = most;
    }
    const float shift = top > kNone ? top : 0.0F;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sum = sum + (kWhole || i < count ? exp_for<T>(v[i] - shift) : 0.0F);
      logits = logits + (kWhole || i < count ? v[i] : 0.0F);
    }
  }
};

/// Of the first `tokens` logits of a block's row; the first warp knows them.
template <typename T, bool kCapped>
__device__ __forceinline__ RowSums row_sums(const Team& team, const BlockRow<T>& row, int tokens,
                                            const Cap<kCapped>& cap) {
  constexpr int V = kRun<T>, kAhead = kRunsAhead<kCapped>;
  RunningSums<T, kCapped> own;
  const int step = team.threads * V;
  for (int c = team.lane() * V; c < tokens; c += kAhead * step) {
    RawRun<T, V> run[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) row.read(c + k * step, tokens, run[k]);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int at = c + k * step;
      if (at >= tokens) continue;
      row.hold(at, run[k]);
      if (at + V <= tokens) {
        own.template add<true>(run[k], V, cap);
      } else {
        own.template add<false>(run[k], tokens - at, cap);
      }
    }
  }

  constexpr float kNone = RunningSums<T, kCapped>::kNone;
  __shared__ RowSums of_warps[kRowWarpsAtMost];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float most = warp_max(own.top);
  if (own.top > kNone) own.sum = own.sum * exp_for<T>(own.top - most);
  double exponentials = warp_sum(static_cast<double>(own.sum));
  double logits = warp_sum(static_cast<double>(own.logits));
  if (lane == 0) of_warps[warp] = {most, 0, exponentials, logits};
  __syncthreads();
  if (warp == 0) {
    const bool present = lane < team.threads / 32;
    const float top = present ? of_warps[lane].top : kNone;
    most = warp_max(top);
    exponentials = present ? of_warps[lane].exponentials : 0.0;
    if (top > kNone) exponentials = exponentials * static_cast<double>(exp_for<T>(top - most));
    exponentials = warp_sum(exponentials);
    logits = warp_sum(present ? of_warps[lane].logits : 0.0);
  }
  return {.top = most,
          .shift = most > kNone ? most : 0.0F,
          .exponentials = exponentials,
          .logits = logits};
}

template <typename T>
struct ClassifyRows {
  Rows<T> logits;
  const std::int32_t* targets;
  float* losses;
  const float* scale;        // null: losses only
  Team team;                 // a block
  int columns, vocab, held;  // see BlockRow
  float soft_cap;
  LossTerms terms;
  bool wide;
};

template <typename T, bool kCapped>
__global__ void __launch_bounds__(kRowThreadsAtMost) classify_kernel(ClassifyRows<T> a) {
  constexpr int V = kRun<T>, kAhead = kRunsAhead<kCapped>;
  __shared__ float shared_shift, shared_weight;
  const Cap<kCapped> cap(a.soft_cap);
  const BlockRow<T> row{a.logits[blockIdx.x], a.held, a.wide};
  const std::int32_t target = a.targets[blockIdx.x];
  const float nan = __builtin_nanf("");
  const LossSlope slope(a.terms, a.vocab);
  const float scale = a.scale == nullptr ? 0.0F : target < a.vocab ? *a.scale : nan;
  float target_logit = 0;
  if (threadIdx.x == 0 && target >= 0)
    target_logit = target < a.vocab ? cap.value(load_one(row.x + target)) : nan;  // no such token
  // Its barrier: the target was read.
  const RowSums sums = row_sums(a.team, row, a.vocab, cap);
  if (threadIdx.x == 0) {
    const double lse = std::log(sums.exponentials) + static_cast<double>(sums.shift);
    const float loss =
        loss_of(a.terms, a.vocab, lse, static_cast<double>(target_logit), sums.logits);
    a.losses[blockIdx.x] = target < 0 ? 0.0F : loss;
    shared_shift = sums.shift;
    shared_weight =
        static_cast<float>(static_cast<double>(scale) * slope.of_softmax(lse) / sums.exponentials);
  }
  if (a.scale == nullptr) return;
  __syncthreads();
  const float shift = shared_shift, weight = shared_weight;
  const float everywhere = scale * slope.everywhere, at_target = scale * slope.at_target;
  const int tokens = target < 0 ? 0 : a.vocab;  // that have a gradient
  const int step = a.team.threads * V;
  for (int c = a.team.lane() * V; c < a.columns; c += kAhead * step) {
    RawRun<T, V> run[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (c + k * step < tokens) row.read_again(c + k * step, tokens, run[k]);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int at = c + k * step, left = a.columns - at;
      if (left <= 0) continue;
      float x[V], d[V] = {};
      if (at < tokens) {
        run[k].unpack(x);
#pragma unroll
        for (int i = 0; i < V; ++i)
          d[i] = exp_for<T>(cap.value(x[i]) - shift) * weight - everywhere;
        if (target >= at && target < at + V) {
#pragma unroll
          for (int i = 0; i < V; ++i) d[i] = at + i == target ? d[i] - at_target : d[i];
        }
#pragma unroll
        for (int i = 0; i < V; ++i) d[i] = cap.times_slope(d[i], x[i]);
        if (at + V > tokens) {
#pragma unroll
          for (int i = 0; i < V; ++i) d[i] = at + i < tokens ? d[i] : 0.0F;
        }
      }
      store(row.x + at, left < V ? left : V, a.wide, d);
    }
  }
}

template <typename T>
struct ClassifyPartRows {
  Rows<T> logits;
  const std::int32_t* targets;
  float* stats;
  Team team;  // a block
  std::int64_t first_token, vocab;
  int tokens;  // of this part
  float soft_cap;
  bool wide;
};

template <typename T, bool kCapped>
__global__ void __launch_bounds__(kRowThreadsAtMost) classify_part_kernel(ClassifyPartRows<T> a) {
  const Cap<kCapped> cap(a.soft_cap);
  const BlockRow<T> row{a.logits[blockIdx.x], 0, a.wide};
  const std::int64_t target = a.targets[blockIdx.x], here = target - a.first_token;
  const RowSums sums = row_sums(a.team, row, a.tokens, cap);
  if (threadIdx.x != 0) return;
  float* stats = a.stats + kPartStats * std::int64_t{blockIdx.x};
  stats[0] = sums.top;
  stats[1] = static_cast<float>(sums.exponentials);
  stats[2] = here >= 0 && here < a.tokens ? cap.value(load_one(row.x + here)) : 0.0F;
  if (target >= a.vocab) stats[2] = __builtin_nanf("");  // no such token
  stats[3] = static_cast<float>(sums.logits);
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
  bool one_scale;  // for all rows
  std::int64_t first_token, tokens;
  float soft_cap;
  LossSlope slope;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    T* x = logits[r] + c;
    const std::int64_t target = targets[r], hit = target - first_token - c;
    const float row_lse = lse[r], factor = scale[one_scale ? 0 : r];
    const auto softmax = static_cast<float>(slope.of_softmax(static_cast<double>(row_lse)));
    const Cap<kCapped> cap(soft_cap);
    float v[V], d[V];
    load(x, count, wide, v);
#pragma unroll
    for (int i = 0; i < V; ++i)
      d[i] = exp_for<T>(cap.value(v[i]) - row_lse) * softmax - slope.everywhere;
    if (hit >= 0 && hit < V) {
#pragma unroll
      for (int i = 0; i < V; ++i) d[i] = i == hit ? d[i] - slope.at_target : d[i];
    }
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] = cap.times_slope(d[i] * factor, v[i]);
    if (target < 0 || c + V > tokens) {
#pragma unroll
      for (int i = 0; i < V; ++i) v[i] = target < 0 || c + i >= tokens ? 0.0F : v[i];
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
