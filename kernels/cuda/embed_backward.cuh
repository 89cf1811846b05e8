// Gradient of a table whose rows many places name: a warp adds up the rows of d of one row of the
// table in the order of their places, 128 columns of them.
#pragma once

#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/place_sort.cuh"

namespace tessera::kernels::cuda {

inline constexpr int kRowThreads = 128, kRowWarps = kRowThreads / 32;
inline constexpr int kRowRun = 4;  // columns of a lane

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
/// begin. Columns of a lane are few, so that many rows can be on their way: a frequent token's rows
/// are one warp's, one after another.
template <typename T, typename G, bool kDropped>
__global__ void __launch_bounds__(kRowThreads) row_gradients_kernel(RowGradients<T, G> a) {
  constexpr int V = kRowRun, kAhead = kDropped ? 4 : 32 / RawRun<T, V>::kWords;
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const std::int64_t warp = std::int64_t{blockIdx.x} * kRowWarps + thread / 32;
  const std::int64_t first = quotient(warp, a.slices);
  if (first >= a.n) return;
  const auto row_at = [&](std::int64_t i) { return i < a.n ? a.sorted.rows[i] : -1; };
  const auto place_at = [&](std::int64_t i) { return i < a.n ? a.sorted.places[i] : 0; };
  const std::int32_t before = first > 0 ? a.sorted.rows[first - 1] : -1;
  std::int32_t own_row = row_at(first + lane), own = place_at(first + lane);
  const std::int32_t row = __shfl_sync(kAllLanes, own_row, 0);
  if (row >= a.rows || before == row) return;
  const std::int64_t c = ((warp - first * a.slices) * 32 + lane) * V, left = a.columns - c;
  const int count = left < 0 ? 0 : left < V ? static_cast<int>(left) : V;

  G* const to = a.table[row] + c;
  RawRun<G, V> there;
  if constexpr (!kDropped) there.read(to, count, a.wide);  // or later: masks take registers
  float sum[V] = {};
  for (std::int64_t i = first;; i += 32) {
    const int places = __popc(__ballot_sync(kAllLanes, own_row == row));  // from lane 0 on
    if (places == 0) break;
    const std::int64_t next = i + 32 + lane;
    std::int32_t next_row = -1, next_own = 0;
    if (places == 32) next_row = row_at(next), next_own = place_at(next);
    for (int k = 0; k < places; k += kAhead) {
      RawRun<T, V> run[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const std::int32_t place = __shfl_sync(kAllLanes, own, (k + j) % 32);
        if (k + j < places) run[j].read(a.d[place] + c, count, a.wide);
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (k + j >= places) continue;
        float v[V];
        run[j].unpack(v);
        if constexpr (kDropped) a.dropout.apply(__shfl_sync(kAllLanes, own, k + j), c, v);
#pragma unroll
        for (int e = 0; e < V; ++e) sum[e] = sum[e] + v[e];
      }
    }
    own_row = next_row, own = next_own;
  }
  if constexpr (kDropped) there.read(to, count, a.wide);
  float v[V];
  there.unpack(v);
#pragma unroll
  for (int e = 0; e < V; ++e) sum[e] = v[e] + sum[e];
  store(to, count, a.wide, sum);
}

}  // namespace tessera::kernels::cuda
