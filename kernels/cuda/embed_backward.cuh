// Gradient of a table whose rows many places name: a warp adds up the rows of d of one row of the
// table in the order of their places, 32 runs of columns at a time.
#pragma once

#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/place_sort.cuh"

namespace tessera::kernels::cuda {

inline constexpr int kRowThreads = 128, kRowWarps = kRowThreads / 32;

template <typename T, typename G>
struct RowGradients {
  Rows<T> d;
  Rows<G> table;
  Places sorted;
  std::int64_t n, rows, columns, slices;  // slices of 32 runs
  DropoutMask dropout;
  bool wide;
};

/// Warp w has sorted place w / slices and that slice of its row; it works where a row's places
/// begin.
template <typename T, typename G>
__global__ void __launch_bounds__(kRowThreads) row_gradients_kernel(RowGradients<T, G> a) {
  constexpr int V = kRun<T, G>, kAhead = 8;  // rows on their way at a time
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const std::int64_t warp = std::int64_t{blockIdx.x} * kRowWarps + thread / 32;
  const std::int64_t first = quotient(warp, a.slices);
  if (first >= a.n) return;
  const std::int32_t row = a.sorted.rows[first];
  if (row >= a.rows || (first > 0 && a.sorted.rows[first - 1] == row)) return;
  const std::int64_t c = ((warp - first * a.slices) * 32 + lane) * V, left = a.columns - c;
  const int count = left < 0 ? 0 : left < V ? static_cast<int>(left) : V;

  float sum[V] = {};
  bool more = true;
  for (std::int64_t i = first; more; i += 32) {
    const bool same = i + lane < a.n && a.sorted.rows[i + lane] == row;
    const int places = __popc(__ballot_sync(kAllLanes, same));  // neighbours, from lane 0 on
    const std::int32_t own = same ? a.sorted.places[i + lane] : 0;
    for (int k = 0; k < places; k += kAhead) {
      float v[kAhead][V];
      std::int64_t place[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        place[j] = __shfl_sync(kAllLanes, own, (k + j) % 32);
        if (k + j < places) load(a.d[place[j]] + c, count, a.wide, v[j]);
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (k + j >= places) continue;
        a.dropout.apply(place[j], c, v[j]);
#pragma unroll
        for (int e = 0; e < V; ++e) sum[e] = sum[e] + v[j][e];
      }
    }
    more = places == 32;
  }
  float before[V];
  load(a.table[row] + c, count, a.wide, before);
#pragma unroll
  for (int e = 0; e < V; ++e) sum[e] = before[e] + sum[e];
  store(a.table[row] + c, count, a.wide, sum);
}

}  // namespace tessera::kernels::cuda
