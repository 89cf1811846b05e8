// Gradients of a norm. A block takes a chunk of rows: each thread adds up the weights' gradients of
// its own columns in registers while the rows go by, and the block leaves one row of partial sums.
#pragma once

#include <type_traits>

#include "core/math.hpp"
#include "kernels/cuda/team.cuh"

namespace tessera::kernels::cuda {

template <typename T>
struct NormBackwardRows {
  Rows<T> d_out, d_resid, sum, weight, d_sum;
  const float* stats;
  float *weights,
      *biases;  // (groups, chunks, heads, C / heads) partial sums; null where none are asked for
  Team team;    // of a head's row
  std::int64_t groups, chunks, group_rows, group_tokens, tokens, columns;  // of a head
  int heads;
  bool layernorm, wide;

  /// Row i of group g, in the order of samples and positions.
  __device__ __forceinline__ std::int64_t row_of(std::int64_t g, std::int64_t i) const {
    return i + quotient(i, group_tokens) * (tokens - group_tokens) + g * group_tokens;
  }
};

/// Of a thread's run: what a norm makes of the row before its weights, the gradient of its output,
/// and that times the weights (0 beyond the row's end, which keeps sums right).
template <int V>
struct NormRun {
  float unit[V], d[V], g[V];

  __device__ __forceinline__ void set(float mean, float scale, const float (&weight)[V]) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      unit[i] = (unit[i] - mean) * scale;
      g[i] = d[i] * weight[i];
    }
  }
  /// What a row's d_sum needs of all its columns.
  __device__ __forceinline__ void add_to(float& sum_g, float& sum_gx) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sum_g = sum_g + g[i];
      sum_gx = fmadd(g[i], unit[i], sum_gx);
    }
  }
};

/// The weights' gradients of a thread's columns.
template <int V, int kRuns>
struct ColumnGradients {
  float weight[kRuns][V], bias[kRuns][V];

  __device__ __forceinline__ void add(int k, const NormRun<V>& x) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      weight[k][j] = fmadd(x.d[j], x.unit[j], weight[k][j]);
      bias[k][j] = bias[k][j] + x.d[j];
    }
  }
};

/// What is read of a row.
enum RowPart : std::uint8_t { kSum, kDOut, kDResid, kRowParts };

/// f(part, k, column, count, address) of each run of a thread that is read of row r.
template <int kRuns, typename T, typename F>
__device__ __forceinline__ void each_part(const NormBackwardRows<T>& a, std::int64_t r, F&& f) {
  constexpr int V = kRun<T>;
  const std::int64_t first = blockIdx.x % a.heads * a.columns;
  a.team.template each_run<V, kRuns>(a.columns, [&](int k, std::int64_t c, int count) {
    f(kSum, k, count, a.sum[r] + first + c);
    f(kDOut, k, count, a.d_out[r] + first + c);
    if (a.d_resid.data != nullptr) f(kDResid, k, count, a.d_resid[r] + first + c);
  });
}

/// A thread's runs of the team's row number n, as they lie in memory.
template <typename T, int kRuns>
class RowInRegisters {
 public:
  using Run = RawRun<T, kRun<T>>;
  static constexpr int kRowsAhead = 0;
  static constexpr std::int64_t kSharedBytes = 0;  // of a thread

  __device__ __forceinline__ void start(const NormBackwardRows<T>& a, int, std::int64_t r) {
    each_part<kRuns>(a, r, [&](RowPart part, int k, int count, const T* from) {
      run_[part][k].read(from, count, a.wide);
    });
  }
  __device__ __forceinline__ Run run(RowPart part, int, int k) const { return run_[part][k]; }

 private:
  Run run_[kRowParts][kRuns];
};

/// The same, with the next rows on their way through shared memory. A thread reads what it has
/// copied itself, so there are no barriers.
template <typename T, int kRuns>
class RowsAhead {
 public:
  using Run = RawRun<T, kRun<T>>;
  static constexpr int kRows = 4, kRowsAhead = kRows - 1;
  static constexpr std::int64_t kSharedBytes = kRows * kRowParts * kRuns * sizeof(Run);
  static_assert(sizeof(Run) == 16);

  __device__ __forceinline__ void start(const NormBackwardRows<T>& a, int n, std::int64_t r) {
    if (r >= 0) {
      each_part<kRuns>(a, r, [&](RowPart part, int k, int count, const T* from) {
        if (a.wide && count >= kRun<T>) {
          copy_async(place(part, n, k), from, true);
        } else {
          place(part, n, k)->read(from, count, false);
        }
      });
    }
    commit_copies();
  }
  /// For the oldest row under way.
  __device__ __forceinline__ void wait() const { wait_for_copies<kRowsAhead - 1>(); }
  __device__ __forceinline__ Run run(RowPart part, int n, int k) const {
    return *place(part, n, k);
  }

 private:
  __device__ __forceinline__ Run* place(RowPart part, int n, int k) const {
    const unsigned which = (static_cast<unsigned>(n) % kRows * kRowParts + part) * kRuns + k;
    return dynamic_shared<Run>() + which * blockDim.x + threadIdx.x;
  }
};

/// Of so many runs shared memory has the next rows.
inline constexpr int kRunsAhead = 1;
template <typename T, int kRuns>
using RowRuns =
    std::conditional_t<kRuns <= kRunsAhead, RowsAhead<T, kRuns>, RowInRegisters<T, kRuns>>;

/// d_sum of a run, of which x has what NormRun::set made of it.
template <int V>
__device__ __forceinline__ void norm_gradient(const NormRun<V>& x, float mean_g,
                                              float minus_mean_gx, float scale, float (&d)[V]) {
#pragma unroll
  for (int i = 0; i < V; ++i) d[i] = fmadd(x.unit[i], minus_mean_gx, x.g[i] - mean_g) * scale;
}

/// Rows of one group that a block goes over, and where it leaves their sums: (C / heads) each.
struct NormBackwardPart {
  std::int64_t group;
  Range rows;
  float *weights, *biases;  // biases null where none are asked for
};

/// Teams add theirs one after another: the order of a sum does not depend on who is first. `total`
/// has room for two rows where a block has several teams.
template <typename T, int V, int kRuns>
__device__ __forceinline__ void add_teams(const NormBackwardRows<T>& a,
                                          const NormBackwardPart& part, float* total,
                                          const ColumnGradients<V, kRuns>& own) {
  const Team& team = a.team;
#pragma unroll 1
  for (int turn_of = 0; turn_of < team.per_block(); ++turn_of) {
    if (team.index() == turn_of) {
      team.template each_run<V, kRuns>(a.columns, [&](int k, std::int64_t c, int count) {
#pragma unroll
        for (int j = 0; j < V; ++j) {
          if (j >= count) continue;
          float w = own.weight[k][j], b = own.bias[k][j];
          if (turn_of > 0) w = total[c + j] + w, b = total[a.columns + c + j] + b;
          if (turn_of + 1 < team.per_block()) {
            total[c + j] = w, total[a.columns + c + j] = b;
          } else {
            part.weights[c + j] = w;
            if (part.biases != nullptr) part.biases[c + j] = b;
          }
        }
      });
    }
    if (team.per_block() > 1) __syncthreads();
  }
}

/// Sums in registers, a part of each team's.
template <typename T, int kRuns>
__device__ __forceinline__ void add_in_registers(const NormBackwardRows<T>& a,
                                                 const NormBackwardPart& part,
                                                 float (&partial)[2][2 * Team::kMostWarps]) {
  constexpr int V = kRun<T>;
  using Row = RowRuns<T, kRuns>;
  const Team& team = a.team;
  const unsigned head = blockIdx.x % a.heads;
  const float share = 1.0F / static_cast<float>(a.columns);
  ColumnGradients<V, kRuns> own{};
  Row row;
  const auto first = static_cast<int>(part.rows.begin) + team.index();
  const auto end = static_cast<int>(part.rows.end);
  const auto row_at = [&](int n) -> std::int64_t {  // of this team; -1: there are no more
    const int i = first + n * team.per_block();
    return i < end ? a.row_of(part.group, i) : -1;
  };
#pragma unroll
  for (int n = 0; n < Row::kRowsAhead; ++n) row.start(a, n, row_at(n));
  std::int64_t r = row_at(0);
  for (int n = 0; r >= 0; r = row_at(++n)) {
    const float* stats = a.stats + 2 * (r * a.heads + head);
    const float mean = stats[0], scale = stats[1];
    if constexpr (Row::kRowsAhead > 0) row.wait();
    row.start(a, n + Row::kRowsAhead, row_at(n + Row::kRowsAhead));
    const auto run_of = [&](int k, std::int64_t c, int count, NormRun<V>& x) {
      float w[V];
      load(a.weight[0] + c, count, a.wide, w);
      row.run(kSum, n, k).unpack(x.unit);
      row.run(kDOut, n, k).unpack(x.d);
      x.set(mean, scale, w);
    };
    float sum_g = 0, sum_gx = 0;
    team.template each_run<V, kRuns>(a.columns, [&](int k, std::int64_t c, int count) {
      NormRun<V> x;
      run_of(k, c, count, x);
      x.add_to(sum_g, sum_gx);
      own.add(k, x);
    });
    team.sum_both(sum_g, sum_gx, partial[n % 2]);
    const float mean_g = a.layernorm ? sum_g * share : 0.0F;
    team.template each_run<V, kRuns>(a.columns, [&](int k, std::int64_t c, int count) {
      NormRun<V> x;
      float d[V];
      run_of(k, c, count, x);
      norm_gradient(x, mean_g, -sum_gx * share, scale, d);
      if (a.d_resid.data != nullptr) {
        float resid[V];
        row.run(kDResid, n, k).unpack(resid);
#pragma unroll
        for (int j = 0; j < V; ++j) d[j] = resid[j] + d[j];
      }
      store(a.d_sum[r] + head * a.columns + c, count, a.wide, d);
    });
  }
  // Behind what is on its way.
  add_teams(a, part, dynamic_shared<float>() + Row::kSharedBytes / 4 * blockDim.x, own);
}

/// Of more columns than registers hold: a row is read twice, and sums stay in memory, each thread's
/// its own.
template <typename T>
__device__ __forceinline__ void add_in_memory(const NormBackwardRows<T>& a,
                                              const NormBackwardPart& part,
                                              float (&partial)[2][2 * Team::kMostWarps]) {
  constexpr int V = kRun<T>;
  const std::int64_t head = blockIdx.x % a.heads, first = head * a.columns;
  const float share = 1.0F / static_cast<float>(a.columns);
  a.team.template each_run<V, 0>(a.columns, [&](int, std::int64_t c, int count) {
    for (int j = 0; j < count; ++j) {
      part.weights[c + j] = 0;
      if (part.biases != nullptr) part.biases[c + j] = 0;
    }
  });
  int turn = 0;
  for (std::int64_t i = part.rows.begin; i < part.rows.end; ++i) {
    const std::int64_t r = a.row_of(part.group, i);
    const float* stats = a.stats + 2 * (r * a.heads + head);
    const float mean = stats[0], scale = stats[1];
    const auto read = [&](std::int64_t c, int count, NormRun<V>& x) {
      float w[V];
      load(a.sum[r] + first + c, count, a.wide, x.unit);
      load(a.d_out[r] + first + c, count, a.wide, x.d);
      load(a.weight[0] + c, count, a.wide, w);
      x.set(mean, scale, w);
    };
    float sum_g = 0, sum_gx = 0;
    a.team.template each_run<V, 0>(a.columns, [&](int, std::int64_t c, int count) {
      NormRun<V> x;
      read(c, count, x);
      x.add_to(sum_g, sum_gx);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (j >= count) continue;
        part.weights[c + j] = fmadd(x.d[j], x.unit[j], part.weights[c + j]);
        if (part.biases != nullptr) part.biases[c + j] = part.biases[c + j] + x.d[j];
      }
    });
    a.team.sum_both(sum_g, sum_gx, partial[turn]);
    const float mean_g = a.layernorm ? sum_g * share : 0.0F;
    a.team.template each_run<V, 0>(a.columns, [&](int, std::int64_t c, int count) {
      NormRun<V> x;
      float d[V];
      read(c, count, x);
      norm_gradient(x, mean_g, -sum_gx * share, scale, d);
      if (a.d_resid.data != nullptr) {
        float resid[V];
        load(a.d_resid[r] + first + c, count, a.wide, resid);
#pragma unroll
        for (int j = 0; j < V; ++j) d[j] = resid[j] + d[j];
      }
      store(a.d_sum[r] + first + c, count, a.wide, d);
    });
    turn = 1 - turn;
  }
}

template <typename T, int kRuns>
__global__ void __launch_bounds__(Team::kMostThreads, kRuns > kRunsAhead ? 1 : 2)
    norm_backward_kernel(NormBackwardRows<T> a) {
  alignas(8) __shared__ float partial[2][2 * Team::kMostWarps];  // of rows in turn
  const std::int64_t chunk = blockIdx.x / a.heads;
  const NormBackwardPart part{
      .group = chunk / a.chunks,
      .rows = even_part(a.group_rows, chunk % a.chunks, a.chunks),
      .weights = a.weights + blockIdx.x * a.columns,
      .biases = a.biases == nullptr ? nullptr : a.biases + blockIdx.x * a.columns};
  if constexpr (kRuns > 0) {
    add_in_registers<T, kRuns>(a, part, partial);
  } else {
    add_in_memory(a, part, partial);
  }
}

}  // namespace tessera::kernels::cuda
