// Mixtures of experts: a warp has a token's experts, every 32nd of them a lane; copies of tokens in
// the order of experts.
#pragma once

#include "kernels/common/experts.hpp"
#include "kernels/common/pool.hpp"
#include "kernels/cuda/place_sort.cuh"

namespace tessera::kernels::cuda {

inline constexpr int kRouteWarps = 4, kRouteThreads = 32 * kRouteWarps;

struct RouteRows {
  Rows<const float> logits;
  const float *bias, *d_weights, *counts, *scale;  // or null
  std::int32_t* experts;
  float *weights, *stats;
  std::int64_t tokens, tokens_per_sample;
  int experts_of_all;
  RouterTerms terms;
  Routing routing;
};

/// sum of value(e) over all experts, the same for all lanes.
template <typename Value>
__device__ __forceinline__ float sum_over_experts(int experts, Value&& value) {
  float sum = 0;
  for (int e = static_cast<int>(threadIdx.x) % 32; e < experts; e += 32) sum = sum + value(e);
  return warp_sum(sum);
}

/// The groups that are open, a bit each.
__device__ __forceinline__ unsigned open_groups(const Routing& r, const float* keys, int experts) {
  const int groups = static_cast<int>(r.groups), size = experts / groups;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  std::uint64_t word = 0;
  if (lane < groups) {
    const float key =
        group_key(r.group_score, size, [&](std::int64_t i) { return keys[lane * size + i]; });
    word = choice_word(key, static_cast<std::uint32_t>(lane));
  }
  unsigned open = 0;
  for (int k = 0; k < static_cast<int>(r.open_groups); ++k) {
    const std::uint64_t best = warp_max(word);
    if (best == word) word = 0;
    open |= 1U << chosen_index(best);
  }
  return open;
}

/// A thread has a token.
inline __global__ void __launch_bounds__(kRouteThreads)
    join_gates_kernel(Rows<const float> logits, Rows<float> joined, std::int64_t tokens,
                      std::int64_t experts, Routing routing) {
  const std::int64_t n = std::int64_t{blockIdx.x} * kRouteThreads + threadIdx.x;
  if (n < tokens) join_gates(routing, experts, logits[n], joined[n]);
}

template <typename T>
__global__ void __launch_bounds__(kRouteThreads)
    separate_gates_kernel(Rows<const float> joined, Rows<const float> d_joined, Rows<T> d_logits,
                          std::int64_t tokens, std::int64_t experts, Routing routing) {
  const std::int64_t n = std::int64_t{blockIdx.x} * kRouteThreads + threadIdx.x;
  if (n >= tokens) return;
  separate_gates(routing, experts, joined[n], d_joined[n],
                 [&](std::int64_t i, float slope) { store_one(d_logits[n] + i, slope); });
}

inline __global__ void __launch_bounds__(kRouteThreads) route_kernel(RouteRows a) {
  __shared__ float all_scores[kRouteWarps][kMostExperts], all_keys[kRouteWarps][kMostExperts];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t n = std::int64_t{blockIdx.x} * kRouteWarps + warp;
  if (n >= a.tokens) return;
  const int experts = a.experts_of_all;
  const float* logits = a.logits[n];
  float *scores = all_scores[warp], *keys = all_keys[warp], *stats = a.stats + n * kRouteStats;

  float largest = -__builtin_inff();
  for (int e = lane; e < experts; e += 32) largest = logits[e] > largest ? logits[e] : largest;
  largest = warp_max(largest);
  const float exponentials =
      sum_over_experts(experts, [&](int e) { return exp_of(logits[e] - largest); });
  float inverse_scores = 1.0F;
  if (a.routing.scores == RouterScores::sigmoid)
    inverse_scores =
        1.0F / (kLeastSum + sum_over_experts(experts, [&](int e) { return sigmoid(logits[e]); }));
  const float known[kRouteStats] = {largest, 1.0F / exponentials, inverse_scores};
  if (lane == 0) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(kRouteStats); ++i) stats[i] = known[i];
  }

  const RouteRow row(a.routing.scores, known);
  for (int e = lane; e < experts; e += 32) {
    const float score = row.score(logits[e]);
    scores[e] = score;
    keys[e] = a.bias == nullptr ? score : score + a.bias[e];
  }
  __syncwarp();
  const int size = experts / static_cast<int>(a.routing.groups);
  const unsigned open = a.routing.open_groups < a.routing.groups
                            ? open_groups(a.routing, keys, experts)
                            : 0xffffffffU;
  const int choices = static_cast<int>(a.routing.choices);
  std::uint64_t last = ~std::uint64_t{0};  // what was chosen last: the next is the largest below it
  float weight = 0;
  for (int k = 0; k < choices; ++k) {
    std::uint64_t best = 0;
    for (int e = lane; e < experts; e += 32) {
      const std::uint64_t word = choice_word(keys[e], static_cast<std::uint32_t>(e));
      const bool may = (open >> (e / size) & 1U) != 0 && word < last;
      best = may && word > best ? word : best;
    }
    last = warp_max(best);
    if (lane == k) weight = scores[chosen_index(last)];
    if (lane == 0) a.experts[n * choices + k] = static_cast<std::int32_t>(chosen_index(last));
  }
  __syncwarp();
  if (lane < choices) keys[lane] = weight;
  __syncwarp();
  if (lane > 0) return;
  weigh(a.routing, keys);
  for (int k = 0; k < choices; ++k) a.weights[n * choices + k] = keys[k];
}

template <typename T>
__global__ void __launch_bounds__(kRouteThreads, 8)
    route_backward_kernel(RouteRows a, Rows<T> out) {
  __shared__ float all_d[kRouteWarps][kMostExperts], all_chosen[kRouteWarps][2 * kMostChoices];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t n = std::int64_t{blockIdx.x} * kRouteWarps + warp;
  if (n >= a.tokens) return;
  const int experts = a.experts_of_all, choices = static_cast<int>(a.routing.choices);
  const bool softmax = a.routing.scores == RouterScores::softmax;
  const float* logits = a.logits[n];
  const RouteRow row(a.routing.scores, a.stats + n * kRouteStats);
  float *d = all_d[warp], *scores = all_chosen[warp], *d_chosen = scores + kMostChoices;

  const RouterTerms terms = scaled(a.terms, a.scale);
  const float* counts =
      a.counts == nullptr ? nullptr : a.counts + quotient(n, a.tokens_per_sample) * experts;
  const float per_choice = row.inverse_scores * terms.balance;
  float mean = 0;
  if (counts != nullptr && !softmax)
    mean = sum_over_experts(experts, [&](int e) { return counts[e] * row.share(logits[e]); });
  for (int e = lane; e < experts; e += 32)
    d[e] = counts == nullptr ? 0.0F : (counts[e] - mean) * per_choice;
  if (lane < choices) scores[lane] = row.score(logits[a.experts[n * choices + lane]]);
  __syncwarp();
  if (lane == 0) {
    unweigh(a.routing, scores, a.d_weights + n * choices, d_chosen);
    for (int k = 0; k < choices; ++k) {
      const int e = a.experts[n * choices + k];
      d[e] = d[e] + d_chosen[k];
    }
  }
  __syncwarp();
  float of_all = 0;
  if (softmax)
    of_all = sum_over_experts(experts, [&](int e) { return row.softmax(logits[e]) * d[e]; });
  const float z = z_slope(terms.z, row);
  for (int e = lane; e < experts; e += 32) {
    const float p = row.softmax(logits[e]), s = sigmoid(logits[e]);
    const float of_scores = softmax ? p * (d[e] - of_all) : s * (1.0F - s) * d[e];
    store_one(out[n] + e, fmadd(z, p, of_scores));
  }
}

inline constexpr int kLoadExperts = 16, kLoadThreads = kLoadExperts * kPoolParts;

/// A block has sixteen experts of a sample; a thread one of them, and every sixteenth token.
inline __global__ void __launch_bounds__(kLoadThreads)
    expert_load_kernel(RouteRows a, Rows<float> counts, Rows<float> shares) {
  __shared__ float all_shares[kPoolParts][kLoadExperts], all_counts[kPoolParts][kLoadExperts];
  const auto thread = static_cast<int>(threadIdx.x);
  const int part = thread / kLoadExperts, lane = thread % kLoadExperts;
  const int sixteens = (a.experts_of_all + kLoadExperts - 1) / kLoadExperts;
  const std::int64_t b = quotient(blockIdx.x, sixteens);
  const int e = static_cast<int>(blockIdx.x - b * sixteens) * kLoadExperts + lane;
  const int choices = static_cast<int>(a.routing.choices);
  float share = 0, count = 0;
  for (std::int64_t t = part; t < a.tokens_per_sample && e < a.experts_of_all; t += kPoolParts) {
    const std::int64_t n = b * a.tokens_per_sample + t;
    share = share + RouteRow(a.routing.scores, a.stats + n * kRouteStats).share(a.logits[n][e]);
    for (int k = 0; k < choices; ++k) count += a.experts[n * choices + k] == e ? 1.0F : 0.0F;
  }
  all_shares[part][lane] = share;
  all_counts[part][lane] = count;
  __syncthreads();
  if (part > 0 || e >= a.experts_of_all) return;
  float of_parts[kPoolParts];
#pragma unroll
  for (int p = 0; p < kPoolParts; ++p) of_parts[p] = all_shares[p][lane];
  fold_parts(of_parts);
  shares[b][e] = of_parts[0] * (1.0F / static_cast<float>(a.tokens_per_sample));
#pragma unroll
  for (int p = 0; p < kPoolParts; ++p) of_parts[p] = all_counts[p][lane];
  fold_parts(of_parts);
  counts[b][e] = of_parts[0];
}

inline constexpr int kCountThreads = 256, kCountedByBlock = 16 * kCountThreads;

struct ChoiceCounts {
  std::int64_t* counts;   // (E)
  std::int64_t* dropped;  // or null
  std::int32_t* here;     // (E), cleared before: choices of blocks that have added theirs; or null
  std::int64_t capacity;
  int experts;
};

__device__ __forceinline__ void add_count(std::int64_t* to, std::int64_t count) {
  using Atomic = unsigned long long;
  atomicAdd(reinterpret_cast<Atomic*>(to), static_cast<Atomic>(count));
}

/// A block counts a piece of `n` choices in shared memory, then adds what it counted, as integers
/// and so in any order: to `dropped` by how much more it makes the choices beyond capacity. A
/// choice that is none of the experts counts nowhere.
inline __global__ void __launch_bounds__(kCountThreads)
    count_choices_kernel(const std::int32_t* chosen, std::int64_t n, ChoiceCounts to) {
  __shared__ std::int32_t of_block[kMostExperts];
  const int experts = to.experts;
  const auto thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < experts; e += kCountThreads) of_block[e] = 0;
  __syncthreads();
  const std::int64_t begin = std::int64_t{blockIdx.x} * kCountedByBlock;
  const std::int64_t end = n - begin < kCountedByBlock ? n : begin + kCountedByBlock;
  for (std::int64_t i = begin + thread; i < end; i += kCountThreads) {
    const std::int32_t e = chosen[i];
    if (e >= 0 && e < experts) atomicAdd(&of_block[e], 1);
  }
  __syncthreads();
  for (int e = thread; e < experts; e += kCountThreads) {
    const std::int32_t count = of_block[e];
    if (count == 0) continue;
    add_count(to.counts + e, count);
    if (to.dropped == nullptr) continue;
    const std::int64_t before = atomicAdd(to.here + e, count);
    const std::int64_t more =
        beyond_capacity(before + count, to.capacity) - beyond_capacity(before, to.capacity);
    if (more > 0) add_count(to.dropped, more);
  }
}

/// One block, whose threads have experts in turns; each of them adds up all choices, which are few.
inline __global__ void __launch_bounds__(kCountThreads)
    balance_experts_kernel(const std::int64_t* choices, int experts, float* kept,
                           const float* verdict, BalanceBy by, float rate) {
  if (verdict[static_cast<int>(VerdictField::apply)] == 0.0F) return;
  std::int64_t all = 0;
  for (int e = 0; e < experts; ++e) all += choices[e];
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kCountThreads)
    kept[e] = balanced(by, kept[e], choices[e], experts, all, rate);
}

/// Where each expert's copies begin and end among those that are sorted; 0 of those without any.
struct ExpertRuns {
  std::int32_t *begins, *ends;  // (G), cleared before
  std::int32_t experts;         // G
  std::int32_t most, rows;      // rows of an expert, and of a part's slot
  std::int32_t of_part;         // experts of a part

  /// Where in Dispatch::begins the number of own expert e is.
  TESSERA_INLINE std::int32_t place_of(std::int32_t e) const { return e + e / of_part; }
  /// The first row of e's slot.
  TESSERA_INLINE std::int32_t slot_of(std::int32_t e) const { return e / of_part * rows; }
};

inline constexpr int kRunThreads = 256;

inline __global__ void __launch_bounds__(kRunThreads)
    expert_runs_kernel(const std::int32_t* sorted, std::int64_t n, ExpertRuns runs) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRunThreads + threadIdx.x;
  if (i >= n) return;
  const std::int32_t e = sorted[i];
  if (e >= runs.experts) return;  // of no own expert
  if (i == 0 || sorted[i - 1] != e) runs.begins[e] = static_cast<std::int32_t>(i);
  if (i == n - 1 || sorted[i + 1] != e) runs.ends[e] = static_cast<std::int32_t>(i + 1);
}

/// begins[e]: the rows of all experts before e, each rounded up; by one thread, for they are few.
/// There are no more than `rows` even where a token has an expert twice.
inline __global__ void expert_begins_kernel(ExpertRuns runs, std::int32_t* begins) {
  std::int32_t row = 0;
  for (int e = 0; e < runs.experts; ++e) {
    if (e % runs.of_part == 0) row = 0;
    std::int32_t* const begin = begins + runs.place_of(e);
    *begin = row;
    const std::int32_t copies = runs.ends[e] - runs.begins[e];
    const std::int64_t taken = round_up(copies < runs.most ? copies : runs.most, kExpertRows);
    row = taken < runs.rows - row ? row + static_cast<std::int32_t>(taken) : runs.rows;
    begin[1] = row;
  }
}

inline __global__ void __launch_bounds__(kRunThreads)
    place_copies_kernel(Places sorted, std::int64_t n, ExpertRuns runs, const std::int32_t* begins,
                        std::int32_t* place, std::int32_t* source) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRunThreads + threadIdx.x;
  if (i >= n) return;
  const std::int32_t e = sorted.rows[i], copy = sorted.places[i];
  place[copy] = -1;
  if (e >= runs.experts) return;
  const std::int32_t of_expert = static_cast<std::int32_t>(i) - runs.begins[e];
  const std::int32_t* const begin = begins + runs.place_of(e);
  if (of_expert >= runs.most || of_expert >= begin[1] - begin[0]) return;
  const std::int32_t row = runs.slot_of(e) + begin[0] + of_expert;
  place[copy] = row;
  source[row] = copy;
}

inline constexpr int kPartThreads = 128;

/// A thread has a token.
inline __global__ void __launch_bounds__(kPartThreads)
    parts_of_choices_kernel(const std::int32_t* experts, const std::int32_t* place,
                            std::int64_t tokens, std::int64_t choices, std::int64_t first,
                            std::int64_t of_part, std::int64_t count, std::int32_t* parts,
                            std::int32_t* own) {
  const std::int64_t n = std::int64_t{blockIdx.x} * kPartThreads + threadIdx.x;
  if (n >= tokens) return;
  parts_of_choices(experts + n * choices, place == nullptr ? nullptr : place + n * choices, choices,
                   first, of_part, count, parts + n * (choices < count ? choices : count),
                   own + n * choices);
}

/// Rows as they are, in words W of their bytes.
template <typename W>
struct CopyRun {
  static constexpr int V = 16 / sizeof(W);
  Rows<W> x, rows;
  const std::int32_t* source;
  std::int64_t choices;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    const std::int32_t copy = source[r];
    const W* const from = copy < 0 ? nullptr : x[quotient(copy, choices)] + c;
    W* const to = rows[r] + c;
    for (int i = 0; i < count; ++i) to[i] = from == nullptr ? W{} : from[i];
  }
};

template <typename T>
struct SpreadRun {
  static constexpr int V = kRun<T>;
  Rows<T> x, rows;
  const float* weights;
  const std::int32_t* source;
  std::int64_t choices;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    const std::int32_t copy = source[r];
    float v[V] = {};
    if (copy >= 0) {
      load(x[quotient(copy, choices)] + c, count, wide, v);
      const float weight = weights[copy];
#pragma unroll
      for (int i = 0; i < V; ++i) v[i] = v[i] * weight;
    }
    store(rows[r] + c, count, wide, v);
  }
};

template <typename T, typename O>
struct CombineRun {
  static constexpr int V = kRun<T, O>;
  Rows<T> rows;
  Rows<O> out;
  const float* weights;
  const std::int32_t* place;
  std::int64_t choices;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t n, std::int64_t c, int count) const {
    float sum[V] = {};
    for (std::int64_t k = n * choices; k < (n + 1) * choices; ++k) {
      const std::int32_t row = place[k];
      if (row < 0) continue;
      float v[V];
      load(rows[row] + c, count, wide, v);
      const float weight = weights == nullptr ? 1.0F : weights[k];
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] = fmadd(weight, v[i], sum[i]);
    }
    store(out[n] + c, count, wide, sum);
  }
};

inline constexpr int kDotWarps = 4, kDotThreads = 32 * kDotWarps;

/// A warp has a copy, which may be without a row.
template <typename T>
__global__ void __launch_bounds__(kDotThreads)
    row_dots_kernel(Rows<T> x, Rows<T> rows, const std::int32_t* place, std::int64_t copies,
                    std::int64_t choices, std::int64_t columns, bool wide, float* dots) {
  constexpr int V = kRun<T>;
  const std::int64_t copy = std::int64_t{blockIdx.x} * kDotWarps + threadIdx.x / 32;
  if (copy >= copies) return;
  const std::int32_t row = place[copy];
  if (row < 0) {
    if (threadIdx.x % 32 == 0) dots[copy] = 0;
    return;
  }
  const T *a = x[quotient(copy, choices)], *b = rows[row];
  float sum = 0;
  for (std::int64_t c = std::int64_t{threadIdx.x % 32} * V; c < columns; c += 32 * V) {
    const int count = columns - c < V ? static_cast<int>(columns - c) : V;
    float left[V] = {}, right[V] = {};
    load(a + c, count, wide, left);
    load(b + c, count, wide, right);
#pragma unroll
    for (int i = 0; i < V; ++i) sum = i < count ? fmadd(left[i], right[i], sum) : sum;
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) dots[copy] = sum;
}

}  // namespace tessera::kernels::cuda
