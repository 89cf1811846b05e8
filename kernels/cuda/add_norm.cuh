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

  /// x = round(x + dropout(p)), which is also written.
  __device__ __forceinline__ void add(std::int64_t r, std::int64_t c, int count, float (&x)[V],
                                      float (&p)[V]) const {
    dropout.apply(r, c, p);
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] = x[i] + p[i];
    RawRun<T, V> rounded;
    rounded.set(x);
    rounded.unpack(x);
    store(sum[r] + c, count, wide, x);
  }
  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float x[V], p[V];
    load(resid[r] + c, count, wide, x);
    load(pending[r] + c, count, wide, p);
    add(r, c, count, x, p);
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

/// What a thread adds up of a row.
template <typename T, int kRuns>
struct AddNormRow {
  static constexpr int V = kRun<T>;
  RawRun<T, V> resid[kRuns], pending[kRuns];

  __device__ __forceinline__ void read(const AddNormRows<T>& a, std::int64_t first,
                                       std::int64_t r) {
    a.team.template each_run<V, kRuns>(a.columns, [&](int k, std::int64_t c, int count) {
      resid[k].read(a.addition.resid[r] + first + c, count, a.addition.wide);
      if (a.addition.pending.data != nullptr)
        pending[k].read(a.addition.pending[r] + c, count, a.addition.wide);
    });
  }

  /// x becomes a run of the sum, of what has been read or, where nothing was kept, is read now.
  template <bool kRead>
  __device__ __forceinline__ void add(const AddNormRows<T>& a, std::int64_t first, std::int64_t r,
                                      int k, std::int64_t c, int count, float (&x)[V]) const {
    const AddPendingRun<T>& addition = a.addition;
    if (kRead) {
      resid[k].unpack(x);
    } else {
      load(addition.resid[r] + first + c, count, addition.wide, x);
    }
    if (addition.pending.data == nullptr) return;
    float p[V];
    if (kRead) {
      pending[k].unpack(p);
    } else {
      load(addition.pending[r] + c, count, addition.wide, p);
    }
    addition.add(r, c, count, x, p);
  }
};

/// A team goes over every so many rows. With kRuns > 0 a row stays in registers, and the next is on
/// its way while one is computed; with 0 it is read again.
template <typename T, int kRuns>
__global__ void __launch_bounds__(Team::kMostThreads, kRuns == 1 && sizeof(T) == 4 ? 2 : 0)
    add_norm_kernel(AddNormRows<T> a) {
  constexpr int V = kRun<T>, kKept = kRuns > 0 ? kRuns : 1;
  __shared__ float partial[2][2][Team::kMostWarps];  // of rows in turn
  const Team& team = a.team;
  const AddPendingRun<T>& addition = a.addition;
  const unsigned head = blockIdx.x % a.heads, teams = gridDim.x / a.heads * team.per_block();
  const bool wide = addition.wide, pending = addition.pending.data != nullptr;
  const std::int64_t first = head * a.columns;  // 0 where something is pending
  const float share = 1.0F / static_cast<float>(a.columns);
  std::int64_t r = std::int64_t{blockIdx.x / a.heads} * team.per_block() + team.index();
  AddNormRow<T, kKept> row, next;
  if (kRuns > 0 && r < a.rows) next.read(a, first, r);
  // A whole warp at a time: larger teams have a block each.
  for (int turn = 0; r < a.rows; r += teams, turn = 1 - turn) {
    if (kRuns > 0) {
      row = next;
      if (r + teams < a.rows) next.read(a, first, r + teams);
    }
    const T* again = (pending ? addition.sum[r] : addition.resid[r]) + first;
    float x[kKept][V] = {}, total = 0;
    team.template each_run<V, kRuns>(a.columns, [&](int k, std::int64_t c, int count) {
      row.template add<(kRuns > 0)>(a, first, r, k, c, count, x[k]);
#pragma unroll
      for (int i = 0; i < V; ++i) total = total + (i < count ? x[k][i] : 0.0F);
    });
    const float mean = a.layernorm ? team.sum(total, partial[turn][0]) * share : 0.0F;
    float squares = 0;
    team.template each_run<V, kRuns>(a.columns, [&](int k, std::int64_t c, int count) {
      if (kRuns == 0) load(again + c, count, wide, x[k]);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float d = i < count ? x[k][i] - mean : 0.0F;
        squares = fmadd(d, d, squares);
      }
    });
    const float scale = 1.0F / sqrt(team.sum(squares, partial[turn][1]) * share + a.eps);
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
}

template <typename T, bool kJitter>
struct ApplyDropoutRun {
  static constexpr int V = kRun<T>;
  Rows<T> x, out;
  DropoutMask dropout;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float v[V];
    load(x[r] + c, count, wide, v);
    dropout.apply<kJitter>(r, c, v);
    store(out[r] + c, count, wide, v);
  }
};

}  // namespace tessera::kernels::cuda
