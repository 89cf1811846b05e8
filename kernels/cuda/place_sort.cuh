// Sorts places by the row of a table that they name, places of a row in their order: a radix sort
// whose every step is stable, so that there is one possible result. Per digit: how often does each
// tile have it; where do its places begin; move them there.
#pragma once

#include <utility>

#include "core/math.hpp"
#include "kernels/common/place_rows.hpp"
#include "kernels/cuda/scratch.hpp"
#include "kernels/cuda/team.cuh"

namespace tessera::kernels::cuda {

struct Places {
  std::int32_t *rows, *places;
};

inline constexpr int kSortThreads = 256, kScanThreads = 1024;
inline constexpr int kSortWarps = kSortThreads / 32;
inline constexpr int kPerWarp = static_cast<int>(PlaceSort::kTile) / kSortWarps;
static_assert(kSortThreads == PlaceSort::kDigits, "a thread has one digit");

__device__ __forceinline__ int digit_of(std::int32_t row, int pass) {
  return row >> (pass * PlaceSort::kDigitBits) & (PlaceSort::kDigits - 1);
}

/// The rows of all places.
inline __global__ void __launch_bounds__(kSortThreads)
    place_rows_kernel(PlaceRows from, std::int64_t n, Places out) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kSortThreads + threadIdx.x;
  if (i >= n) return;
  out.rows[i] = static_cast<std::int32_t>(from.of(i));
  out.places[i] = static_cast<std::int32_t>(i);
}

/// counts[digit][tile]: places of the tile with that digit.
inline __global__ void __launch_bounds__(kSortThreads)
    count_digits_kernel(const std::int32_t* rows, std::int64_t n, int pass, std::int64_t tiles,
                        std::int32_t* counts) {
  __shared__ std::int32_t count[PlaceSort::kDigits];
  const auto thread = static_cast<int>(threadIdx.x);
  count[thread] = 0;
  __syncthreads();
  const std::int64_t begin = blockIdx.x * PlaceSort::kTile;
  for (std::int64_t i = begin + thread; i < n && i < begin + PlaceSort::kTile; i += kSortThreads) {
    atomicAdd(&count[digit_of(rows[i], pass)], 1);
  }
  __syncthreads();
  counts[thread * tiles + blockIdx.x] = count[thread];
}

/// counts[i] becomes the sum of those before it; one block.
inline __global__ void __launch_bounds__(kScanThreads)
    scan_counts_kernel(std::int32_t* counts, std::int64_t n) {
  __shared__ std::int32_t warp_total[kScanThreads / 32];
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  const std::int64_t each = (n + kScanThreads - 1) / kScanThreads;
  const std::int64_t begin = thread * each, end = begin + each < n ? begin + each : n;
  std::int32_t own = 0;
  for (std::int64_t i = begin; i < end; ++i) own += counts[i];
  std::int32_t before = own;  // with this thread's, within the warp
  for (int step = 1; step < 32; step *= 2) {
    const std::int32_t lower = __shfl_up_sync(kAllLanes, before, static_cast<unsigned>(step));
    if (lane >= step) before += lower;
  }
  if (lane == 31) warp_total[warp] = before;
  __syncthreads();
  before -= own;
  for (int w = 0; w < warp; ++w) before += warp_total[w];
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int32_t count = counts[i];
    counts[i] = before;
    before += count;
  }
}

/// Moves a tile's places to where those of their digit begin, in their order: a warp has 256
/// neighbours and goes through them 32 at a time.
inline __global__ void __launch_bounds__(kSortThreads)
    move_places_kernel(Places from, std::int64_t n, int pass, std::int64_t tiles,
                       const std::int32_t* begins, Places to) {
  __shared__ std::int32_t next[kSortWarps][PlaceSort::kDigits];  // a warp's next place of a digit
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  for (int w = 0; w < kSortWarps; ++w) next[w][thread] = 0;
  __syncthreads();
  const std::int64_t begin = blockIdx.x * PlaceSort::kTile + warp * kPerWarp;
  for (int k = lane; k < kPerWarp; k += 32) {
    if (begin + k < n) atomicAdd(&next[warp][digit_of(from.rows[begin + k], pass)], 1);
  }
  __syncthreads();
  std::int32_t at = begins[thread * tiles + blockIdx.x];
  for (int w = 0; w < kSortWarps; ++w) {
    const std::int32_t count = next[w][thread];
    next[w][thread] = at;
    at += count;
  }
  __syncthreads();
  for (int k = lane; k < kPerWarp; k += 32) {
    const bool here = begin + k < n;
    const std::int32_t row = here ? from.rows[begin + k] : 0;
    const int digit = here ? digit_of(row, pass) : PlaceSort::kDigits;
    const unsigned alike = __match_any_sync(kAllLanes, digit);
    const unsigned before = alike & ((1U << lane) - 1U);
    std::int32_t to_place = 0;
    if (here) to_place = next[warp][digit] + __popc(before);
    __syncwarp();
    if (here && before == 0) next[warp][digit] += __popc(alike);
    __syncwarp();
    if (!here) continue;
    to.rows[to_place] = row;
    to.places[to_place] = from.places[begin + k];
  }
}

/// Sorts into one of the two halves of scratch, and says which.
inline Places sort_places(const char* operation, const View& scratch, const PlaceSort& sort,
                          const PlaceRows& rows, const Context& context) {
  TESSERA_CHECK(sort.places <= 0x7fffffff && rows.rows < 0x7fffffff,
                "{} places of a table of {} rows", sort.places, rows.rows);
  auto* words = reinterpret_cast<std::int32_t*>(scratch.data);
  Places from{words, words + sort.places};
  Places to{words + 2 * sort.places, words + 3 * sort.places};
  std::int32_t* counts = words + 4 * sort.places;
  launch(on(context, operation, ceil_div(sort.places, kSortThreads), kSortThreads),
         place_rows_kernel, rows, sort.places, from);
  for (int pass = 0; pass < sort.passes; ++pass) {
    launch(on(context, operation, sort.tiles, kSortThreads), count_digits_kernel, from.rows,
           sort.places, pass, sort.tiles, counts);
    launch(on(context, operation, 1, kScanThreads), scan_counts_kernel, counts,
           PlaceSort::kDigits * sort.tiles);
    launch(on(context, operation, sort.tiles, kSortThreads), move_places_kernel, from, sort.places,
           pass, sort.tiles, counts, to);
    std::swap(from, to);
  }
  return from;
}

}  // namespace tessera::kernels::cuda
