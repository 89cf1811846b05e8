// Residual addition and norm of a row, fused: the row stays in registers between its addition, its
// two statistics and its output.
#pragma once

#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/team.cuh"

namespace tessera::kernels::cuda {

template <typename T>
struct AddPendingRun {
  static constexpr int V = kRun<T>;
  Rows<T> resid, pending, sum;
  DropoutMask dropout;
  bool wide;

  /// x = round(resid + dropout(pending)), which is also written.
  __device__ __forceinline__ void add(std::int64_t r, std::int64_t c, int count,
                                      float (&x)[V]) const {
    float p[V];
    load(resid[r] + c, count, wide, x);
    load(pending[r] + c, count, wide, p);
    dropout.apply(r, c, p);
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] = x[i] + p[i];
    RawRun<T, V> rounded;
    rounded.set(x);
    rounded.unpack(x);
    store(sum[r] + c, count, wide, x);
  }
  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float x[V];
    add(r, c, count, x);
  }
};

template <typename T>
struct AddNormRows {
  AddPendingRun<T> addition;  // resid alone where nothing is pending
  Rows<T> out, weight, bias;
  float* stats;
  Team team;                   // of a row
  std::int64_t rows, columns;  // of a head
  int heads;
  float eps;
  bool layernorm;
};

template <typename T, int kRuns>
__global__ void __launch_bounds__(Team::kMostThreads) add_norm_kernel(AddNormRows<T> a) {
  constexpr int V = kRun<T>;
  __shared__ float partial[2][Team::kMostWarps];
  const Team& team = a.team;
  const unsigned head = blockIdx.x % a.heads;
  const std::int64_t r = std::int64_t{blockIdx.x / a.heads} * team.per_block() + team.index();
  if (r >= a.rows) return;  // a whole warp: larger teams have a block each
  const bool wide = a.addition.wide, pending = a.addition.pending.data != nullptr;
  const std::int64_t first = head * a.columns;  // 0 where something is pending
  const T* again = (pending ? a.addition.sum[r] : a.addition.resid[r]) + first;

  float x[kRuns > 0 ? kRuns : 1][V], total = 0;
  team.template each_run<V, kRuns>(a.columns, [&](int k, std::int64_t c, int count) {
    if (pending) {
      a.addition.add(r, c, count, x[k]);
    } else {
      load(again + c, count, wide, x[k]);
    }
#pragma unroll
    for (int i = 0; i < V; ++i) total = total + (i < count ? x[k][i] : 0.0F);
  });
  const auto n = static_cast<float>(a.columns);
  const float mean = a.layernorm ? team.sum(total, partial[0]) / n : 0.0F;
  float squares = 0;
  team.template each_run<V, kRuns>(a.columns, [&](int k, std::int64_t c, int count) {
    if (kRuns == 0) load(again + c, count, wide, x[k]);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float d = i < count ? x[k][i] - mean : 0.0F;
      squares = fmadd(d, d, squares);
    }
  });
  const float scale = 1.0F / sqrt(team.sum(squares, partial[1]) / n + a.eps);
  if (team.lane() == 0) {
    float* stats = a.stats + 2 * (r * a.heads + head);
    stats[0] = mean, stats[1] = scale;
  }
  team.template each_run<V, kRuns>(a.columns, [&](int k, std::int64_t c, int count) {
    float w[V], b[V];
    if (kRuns == 0) load(again + c, count, wide, x[k]);
    load(a.weight[0] + c, count, wide, w);
    if (a.bias.data != nullptr) load(a.bias[0] + c, count, wide, b);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float unit = (x[k][i] - mean) * scale;
      w[i] = a.bias.data != nullptr ? fmadd(unit, w[i], b[i]) : unit * w[i];
    }
    store(a.out[r] + first + c, count, wide, w);
  });
}

template <typename T>
struct ApplyDropoutRun {
  static constexpr int V = kRun<T>;
  Rows<T> x, out;
  DropoutMask dropout;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float v[V];
    load(x[r] + c, count, wide, v);
    dropout.apply(r, c, v);
    store(out[r] + c, count, wide, v);
  }
};

}  // namespace tessera::kernels::cuda
