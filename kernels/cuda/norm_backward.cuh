// Gradients of a norm. A block takes a chunk of rows: each thread adds up the weights' gradients of
// its own columns in registers while the rows go by, and the block leaves one row of partial sums.
#pragma once

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
    return i + i / group_tokens * (tokens - group_tokens) + g * group_tokens;
  }
};

/// The weights' gradients of a thread's columns.
template <int V, int kRuns>
struct ColumnGradients {
  float weight[kRuns][V], bias[kRuns][V];
};

/// What a team adds up while it goes over rows: d_sum of this block's head of row r, and the
/// columns' gradients by add(k, column, count, unit, d).
template <typename T, int kRuns, typename Add>
__device__ __forceinline__ void norm_backward_row(const NormBackwardRows<T>& a, std::int64_t r,
                                                  float* partial, Add&& add) {
  constexpr int V = kRun<T>, kKept = kRuns > 0 ? kRuns : 1;
  const Team& team = a.team;
  const unsigned head = blockIdx.x % a.heads;
  const std::int64_t first = head * a.columns;
  const float* stats = a.stats + 2 * (r * a.heads + head);
  const float mean = stats[0], scale = stats[1];
  float unit[kKept][V], g[kKept][V], sum_g = 0, sum_gx = 0;
  const auto read = [&](int k, std::int64_t c, int count, float(&d)[V]) {
    float w[V];
    load(a.sum[r] + first + c, count, a.wide, unit[k]);
    load(a.d_out[r] + first + c, count, a.wide, d);
    load(a.weight[0] + c, count, a.wide, w);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      unit[k][i] = (unit[k][i] - mean) * scale;
      g[k][i] = d[i] * w[i];  // 0 beyond count, which keeps the sums right
    }
  };
  team.template each_run<V, kRuns>(a.columns, [&](int k, std::int64_t c, int count) {
    float d[V];
    read(k, c, count, d);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sum_g = sum_g + g[k][i];
      sum_gx = fmadd(g[k][i], unit[k][i], sum_gx);
    }
    add(k, c, count, unit[k], d);
  });
  const auto n = static_cast<float>(a.columns);
  sum_gx = team.sum(sum_gx, partial);
  const float mean_g = a.layernorm ? team.sum(sum_g, partial + Team::kMostWarps) / n : 0.0F;
  const float minus_mean_gx = -sum_gx / n;
  team.template each_run<V, kRuns>(a.columns, [&](int k, std::int64_t c, int count) {
    float d[V], base[V];
    if (kRuns == 0) read(k, c, count, d);
    if (a.d_resid.data != nullptr) load(a.d_resid[r] + first + c, count, a.wide, base);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      d[i] = fmadd(unit[k][i], minus_mean_gx, g[k][i] - mean_g) * scale;
      if (a.d_resid.data != nullptr) d[i] = base[i] + d[i];
    }
    store(a.d_sum[r] + first + c, count, a.wide, d);
  });
}

/// Rows of one group that a block goes over, and where it leaves their sums: (C / heads) each.
struct NormBackwardPart {
  std::int64_t group;
  Range rows;
  float *weights, *biases;  // biases null where none are asked for
};

/// Teams add theirs one after another: the order of a sum does not depend on who is first.
template <typename T, int V, int kRuns>
__device__ __forceinline__ void add_teams(const NormBackwardRows<T>& a,
                                          const NormBackwardPart& part,
                                          const ColumnGradients<V, kRuns>& own) {
  const Team& team = a.team;
  float* total = dynamic_shared<float>();
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
  ColumnGradients<V, kRuns> own{};
  int turn = 0;
  for (std::int64_t i = part.rows.begin + a.team.index(); i < part.rows.end;
       i += a.team.per_block()) {
    norm_backward_row<T, kRuns>(
        a, a.row_of(part.group, i), partial[turn],
        [&](int k, std::int64_t, int, const float(&unit)[V], const float(&d)[V]) {
#pragma unroll
          for (int j = 0; j < V; ++j) {
            own.weight[k][j] = fmadd(d[j], unit[j], own.weight[k][j]);
            own.bias[k][j] = own.bias[k][j] + d[j];
          }
        });
    turn = 1 - turn;
  }
  add_teams(a, part, own);
}

/// Of more columns than registers hold: sums stay in memory, each thread's its own.
template <typename T>
__device__ __forceinline__ void add_in_memory(const NormBackwardRows<T>& a,
                                              const NormBackwardPart& part,
                                              float (&partial)[2][2 * Team::kMostWarps]) {
  constexpr int V = kRun<T>;
  a.team.template each_run<V, 0>(a.columns, [&](int, std::int64_t c, int count) {
    for (int j = 0; j < count; ++j) {
      part.weights[c + j] = 0;
      if (part.biases != nullptr) part.biases[c + j] = 0;
    }
  });
  int turn = 0;
  for (std::int64_t i = part.rows.begin; i < part.rows.end; ++i) {
    norm_backward_row<T, 0>(
        a, a.row_of(part.group, i), partial[turn],
        [&](int, std::int64_t c, int count, const float(&unit)[V], const float(&d)[V]) {
#pragma unroll
          for (int j = 0; j < V; ++j) {
            if (j >= count) continue;
            part.weights[c + j] = fmadd(d[j], unit[j], part.weights[c + j]);
            if (part.biases != nullptr) part.biases[c + j] = part.biases[c + j] + d[j];
          }
        });
    turn = 1 - turn;
  }
}

template <typename T, int kRuns>
__global__ void __launch_bounds__(Team::kMostThreads) norm_backward_kernel(NormBackwardRows<T> a) {
  __shared__ float partial[2][2 * Team::kMostWarps];  // of rows in turn
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
