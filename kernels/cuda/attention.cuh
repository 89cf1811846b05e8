// Attention in tiles whose scores never leave the chip (Dao 2023, FlashAttention-2). Forward: a
// block has 16 queries a warp and walks over the keys with a running softmax. Backward: one kernel
// walks over queries for d_k and d_v of a block of keys, one over keys for d_q of a block of
// queries; every sum has one owner and one order. 16-bit probabilities are rounded to the operands'
// type before they meet v, as in the paper.
//
// The two backward kernels both compute scores and their gradients, so that they make seven
// products where the paper's single kernel makes five. That kernel adds a block's part of d_q to
// memory atomically, in whatever order blocks come; here no sum depends on it, and none needs
// scores in memory. Products are mma.sync, which every GPU from sm_80 on has in the same form.
// wgmma is of sm_90a alone, and Blackwell has a third form. On Hopper mma.sync reaches less than
// two thirds of what wgmma does (Luo et al. 2024), which these kernels give up: plain causal
// attention, of which training is mostly made, goes to cuDNN (sdpa_rules.hpp), and they are for the
// rest.
#pragma once

#include <algorithm>

#include "kernels/common/dropout.hpp"
#include "kernels/common/sight.hpp"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/dropout.cuh"

namespace tessera::kernels::cuda {

/// What all attention kernels need to know of a call.
struct AttentionSetting {
  int samples, queries, keys, heads, kv_heads;
  int first;              // token of the first query, from that of the first key
  int first_key, tokens;  // of KeyPart
  int group, skip;        // of AttentionShape, group resolved
  float scale;
  bool whole_vectors;  // rows of all heads of all operands
  bool dropped;
  DropoutRule rule;
  const std::int64_t* sample_index;
  Sight sight;
  const std::int32_t* documents;  // (B, tokens, 2), or null
  float soft_cap, cap_scale;      // scores become soft_cap tanh(cap_scale q k); 0: they do not
  const CachedSample* cached = nullptr;  // (B), where k and v are caches
  const std::int32_t* pages = nullptr;   // (B, most_pages), each of page_tokens
  int most_pages = 0, page_tokens = 0;

  __device__ int kv_head_of(int head) const { return (skip + head) / group; }
  __device__ __forceinline__ KeyPart part() const { return {first_key, keys, tokens}; }
};

/// Which kernels a call needs: those of each query and all keys up to its own, which is one of
/// them, which have no registers or instructions for more, those that look ranges up, or those that
/// look up what a cache has of a sample, too.
enum class Masking : std::uint8_t { causal, ranges, cached };

/// Tokens [begin, end) of a sample, from that of the first key.
struct TokenRange {
  int begin, end;
};
/// What a token's query sees, or which tokens' queries see its key.
__device__ __forceinline__ TokenRange seen_keys(const AttentionSetting& s, int sample, int query) {
  const KeyPart part = s.part();
  const Range document = part.document_of(s.documents, sample, query);
  const Range keys = s.sight.keys_of(query, part.keys_of(document));
  return {static_cast<int>(keys.begin), static_cast<int>(keys.end)};
}
__device__ __forceinline__ TokenRange seeing_queries(const AttentionSetting& s, int sample,
                                                     int key) {
  const Range document = s.part().document_of(s.documents, sample, key);
  const Range queries = s.sight.queries_of(key, document);
  return {static_cast<int>(queries.begin), static_cast<int>(queries.end)};
}

/// A (B, T, heads dim) operand.
template <typename T>
struct HeadsView {
  T* data;
  std::int64_t ld;
  int dim;

  __device__ HeadMatrix<T> matrix(const AttentionSetting& s, int sample, int tokens,
                                  int head) const {
    return {data + std::int64_t{sample} * tokens * ld + std::int64_t{head} * dim, ld, tokens, dim,
            s.whole_vectors};
  }
};

/// The exponential of a softmax: base 2 for 16-bit types, by the GPU's own instruction, whose error
/// is far below theirs; scores are multiplied by log2(e) with the scale. Base e for f32.
template <typename T>
struct Softmax {
  static constexpr float kLog2E = sizeof(T) == 2 ? 1.44269504F : 1.0F;
  static constexpr float kLn2 = sizeof(T) == 2 ? 0.693147181F : 1.0F;

  static __device__ float exp(float x) {
    if constexpr (sizeof(T) == 2) return exp2_approximately(x);
    return exp_of(x);
  }
};
inline constexpr float kMasked = -__builtin_inff();

/// The most shared memory of a block's tiles: what GPUs of compute capability 8.6 and 8.9 have, the
/// least of all that we compute on.
inline constexpr int kMostSharedBytes = 99 << 10;
/// Heads of more columns have smaller tiles.
inline constexpr int kNarrowDim = 128;

/// Blocks that a multiprocessor holds at least. Said for f32, where the compiler else spills a few
/// registers to hold more; 0 leaves the number to it.
template <typename T>
inline constexpr int kLeastBlocks = sizeof(T) == 2 ? 0 : 1;

/// Tile sizes of the forward kernel.
template <typename T, int kDim>
struct ForwardTiles {
  static constexpr int kWarps = sizeof(T) == 2 ? 4 : 2, kThreads = kWarps * kWarp;
  static constexpr int kQueries = kWarps * kWarpRows;
  static constexpr int kKeys = (sizeof(T) == 2 ? 64 : 32) / (kDim <= kNarrowDim ? 1 : 2);
  static constexpr int kSharedBytes =
      (kQueries + 2 * kKeys) * kPitch<T, kDim> * static_cast<int>(sizeof(T)) +
      kWarps * kStaging<T, kKeys> * static_cast<int>(sizeof(float));
  static_assert(kSharedBytes <= kMostSharedBytes && kPageTokens % kKeys == 0);
};

/// What dropout keeps of a warp's tile of kColumns, for one head and sample: of a lane bit 4 j + e
/// is c[j][e]'s. Rows are queries, or with kByKeys keys, and columns the others, counted from
/// those of first_row and first_column.
template <int kColumns, bool kByKeys>
struct KeptOfTile {
  static_assert(kColumns / 2 <= 32);
  const AttentionSetting& s;
  std::uint64_t stream;
  std::int64_t first;  // element of the tile's first query and key

  __device__ __forceinline__ KeptOfTile(const AttentionSetting& setting, int sample, int head,
                                        int first_row, int first_column)
      : s(setting),
        stream(static_cast<std::uint64_t>(setting.sample_index[sample])),
        first(setting.rule.first +
              setting.part().pair(head, setting.first + (kByKeys ? first_column : first_row),
                                  kByKeys ? first_row : first_column)) {}

  __device__ __forceinline__ std::int64_t element(int row, int column) const {
    return first + std::int64_t{kByKeys ? column : row} * s.tokens + (kByKeys ? row : column);
  }
  __device__ __forceinline__ std::array<std::uint32_t, 4> block_of(std::int64_t element) const {
    return random_block(s.rule.key, stream, static_cast<std::uint64_t>(element) / 8);
  }
  __device__ __forceinline__ std::uint32_t kept(std::uint32_t half) const {
    return half >= s.rule.threshold ? 1U : 0U;
  }
  /// Blocks of eight keys begin where the tile's do.
  __device__ __forceinline__ bool aligned() const { return s.tokens % 8 == 0 && first % 8 == 0; }

  /// Loops, for a block's code for each element would be a third of a kernel.
  __device__ __forceinline__ std::uint32_t bits() const {
    if (aligned()) return kByKeys ? of_columns() : of_rows();
    std::int64_t last = -1;  // no element's block
    std::uint64_t low = 0, high = 0;
    std::uint32_t all = 0;
#pragma unroll 1
    for (int i = 0; i < kColumns / 2; ++i) {
      const std::int64_t at = element(row_of(i % 4), 8 * (i / 4) + column_of(i % 4));
      if (at / 8 != last) {  // neighbours often share one
        last = at / 8;
        const auto words = block_of(at);
        low = words[0] | std::uint64_t{words[1]} << 32;
        high = words[2] | std::uint64_t{words[3]} << 32;
      }
      const auto half = static_cast<int>(at % 8);
      const std::uint64_t four = half < 4 ? low : high;
      all |= kept(static_cast<std::uint32_t>(four >> (16 * (half % 4))) & 0xffffU) << i;
    }
    return all;
  }

  /// Eight columns of a row are a block, of which each of four lanes needs a word: each makes the
  /// blocks of every fourth eight columns, and gives the others their words.
  __device__ __forceinline__ std::uint32_t of_rows() const {
    const int lane = lane_of_warp() % 4;
    std::uint32_t all = 0;
#pragma unroll 1
    for (int i = 0; i < 2 * ((kColumns + 31) / 32); ++i) {
      const int half = i % 2, eights = i / 2 * 4;  // of rows; of columns
      const auto own = block_of(element(row_of(2 * half), 8 * (eights + lane)));
#pragma unroll
      for (int other = 0; other < 4; ++other) {
        const std::uint32_t mine = pick(lane ^ other, own[0], own[1], own[2], own[3]),
                            word = __shfl_xor_sync(kAllLanes, mine, other);
        const int j = eights + (lane ^ other);
        if (j < kColumns / 8)
          all |= (kept(word & 0xffffU) | kept(word >> 16) << 1) << (4 * j + 2 * half);
      }
    }
    return all;
  }

  /// Eight rows of a column are a block, of which each of eight lanes needs a half.
  __device__ __forceinline__ std::uint32_t of_columns() const {
    const int lane = lane_of_warp() / 4;
    std::uint32_t all = 0;
#pragma unroll 1
    for (int eight = 0; eight < kColumns / 2; eight += 8) {
      const int i = eight + lane;  // the bit whose block this lane makes
      const auto own = block_of(element(8 * (i % 4 / 2), 8 * (i / 4) + column_of(i % 4)));
#pragma unroll
      for (int other = 0; other < 8; ++other) {
        const std::uint32_t mine = pick((lane ^ other) / 2, own[0], own[1], own[2], own[3]),
                            word = __shfl_xor_sync(kAllLanes, mine, 4 * other);
        all |= kept(word >> (16 * (lane % 2)) & 0xffffU) << (eight + (lane ^ other));
      }
    }
    return all;
  }
};

/// Dropout's factor of c[j][e].
__device__ __forceinline__ float dropout_factor(const AttentionSetting& s, std::uint32_t kept,
                                                int j, int e) {
  return (kept >> (4 * j + e) & 1U) != 0 ? s.rule.factor : 0.0F;
}

/// Combines a value over the four lanes that share a row.
template <typename F>
__device__ __forceinline__ float over_row(float x, F&& combine) {
  x = combine(x, __shfl_xor_sync(kAllLanes, x, 1));
  return combine(x, __shfl_xor_sync(kAllLanes, x, 2));
}

/// The queries of one head that a block of the forward kernel has. The longest rows come first, so
/// that no block of theirs is left alone at the end.
template <typename Tiles, Masking kMasking>
struct ForwardBlock {
  int sample, head, head_index;
  int first_query;
  int queries, keys;                 // of the sample; there may be room for more
  int history;                       // where the call's first query is, from the first key
  int first_tile = 0, end_tile = 0;  // of keys

  static __device__ __forceinline__ ForwardBlock of(const AttentionSetting& s) {
    const int heads = s.samples * s.heads,
              blocks = (s.queries + Tiles::kQueries - 1) / Tiles::kQueries;
    const int head_index = static_cast<int>(blockIdx.x) % heads, sample = head_index / s.heads;
    ForwardBlock block{
        .sample = sample,
        .head = head_index % s.heads,
        .head_index = head_index,
        .first_query = (blocks - 1 - static_cast<int>(blockIdx.x) / heads) * Tiles::kQueries,
        .queries = s.queries,
        .keys = s.keys,
        .history = s.first};
    if constexpr (kMasking == Masking::cached) {
      const CachedSample cached = s.cached[sample];
      block.history = cached.before, block.queries = cached.count;
      block.keys = static_cast<int>(part_of(cached).count);
      if (block.first_query >= block.queries) return block;  // padding, which sees no tile
    }
    const int last_query = std::min(block.first_query + Tiles::kQueries, block.queries) - 1;
    block.first_tile = block.seen(s, block.first_query).begin / Tiles::kKeys;
    block.end_tile = (block.seen(s, last_query).end - 1) / Tiles::kKeys + 1;
    return block;
  }
  /// What a query sees.
  __device__ __forceinline__ TokenRange seen(const AttentionSetting& s, int query) const {
    if constexpr (kMasking == Masking::causal) return {0, history + query + 1};
    if constexpr (kMasking == Masking::ranges) return seen_keys(s, sample, history + query);
    const Range of_sample = s.sight.keys_of(history + query, Range{0, keys});
    return {static_cast<int>(of_sample.begin), static_cast<int>(of_sample.end)};
  }
  /// Begins to copy a tile of k's or v's rows, which does not cross pages.
  template <typename T, int kDim>
  __device__ __forceinline__ void begin_keys(const AttentionSetting& s, const HeadsView<const T>& x,
                                             int first_key, T* tile) const {
    const int kv_head = s.kv_head_of(head);
    if constexpr (kMasking == Masking::cached) {
      const int page = first_key / s.page_tokens, before = page * s.page_tokens;
      HeadMatrix<const T> rows =
          x.matrix(s, s.pages[sample * s.most_pages + page], s.page_tokens, kv_head);
      rows.tokens = std::min(s.page_tokens, keys - before);
      begin_tile<T, kDim, Tiles::kKeys>(tile, rows, first_key - before);
    } else {
      begin_tile<T, kDim, Tiles::kKeys>(tile, x.matrix(s, sample, s.keys, kv_head), first_key);
    }
  }
};

/// What the two rows of a lane see, in columns of tokens; a row beyond `tokens` sees nothing.
struct SeenRows {
  TokenRange of[2];

  template <typename Seen>
  __device__ __forceinline__ void take(int first_row, int tokens, Seen&& seen) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_row + row_of(2 * r);
      of[r] = row < tokens ? seen(row) : TokenRange{0, 0};
    }
  }
  __device__ __forceinline__ bool sees(int element, int column) const {
    const TokenRange& row = of[element / 2];
    return row.begin <= column && column < row.end;
  }
};

/// Scales a tile of scores, caps them, and masks keys that a query does not see. Returns in
/// `largest` what a lane has of each row's maximum.
template <typename T, int kKeys, typename Sees>
__device__ __forceinline__ void mask_scores(WarpTile<kKeys>& scores, const AttentionSetting& s,
                                            bool capped, Sees&& sees, float (&largest)[2]) {
  const float scale = s.scale * Softmax<T>::kLog2E, cap = s.soft_cap * Softmax<T>::kLog2E;
#pragma unroll
  for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float& score = scores.c[j][e];
      score = capped ? tanh_of(score * s.cap_scale) * cap : score * scale;
      if (!sees(j, e)) score = kMasked;
      largest[e / 2] = fmaxf(largest[e / 2], score);
    }
  }
}

/// The same for a warp's tile of the forward kernel: `first_token` is that of its first query, and
/// `rows` what its queries see where that is looked up.
template <typename T, Masking kMasking, int kKeys>
__device__ __forceinline__ void mask_tile(WarpTile<kKeys>& scores, const AttentionSetting& s,
                                          const SeenRows& rows, int first_token, int first_key,
                                          float (&largest)[2]) {
  const auto key_of = [&](int j, int e) { return first_key + 8 * j + column_of(e); };
  if constexpr (kMasking == Masking::causal) {
    const bool all = first_key + kKeys <= first_token + 1;
    mask_scores<T>(
        scores, s, false,
        [&](int j, int e) {
          return all || (key_of(j, e) <= first_token + row_of(e) && key_of(j, e) < s.keys);
        },
        largest);
  } else {
    mask_scores<T>(
        scores, s, s.soft_cap > 0, [&](int j, int e) { return rows.sees(e, key_of(j, e)); },
        largest);
  }
}

/// The running softmax of a warp's rows (section 3.1 of the paper): a lane has two of them.
template <typename T>
struct RunningSoftmax {
  float row_max[2] = {kMasked, kMasked};
  float row_sum[2] = {0, 0};  // this lane's part

  /// Scores become probabilities relative to the new maximum; earlier output is rescaled.
  template <int kKeys, int kDim>
  __device__ __forceinline__ void add(WarpTile<kKeys>& scores, const float (&tile_max)[2],
                                      WarpTile<kDim>& out) {
    float base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float largest = over_row(tile_max[r], [](float x, float y) { return fmaxf(x, y); });
      const float new_max = fmaxf(row_max[r], largest);
      base[r] = new_max == kMasked ? 0.0F : new_max;
      const float factor = Softmax<T>::exp(row_max[r] - base[r]);
      row_max[r] = new_max;
      row_sum[r] *= factor;
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j) {
        out.c[j][2 * r] *= factor;
        out.c[j][2 * r + 1] *= factor;
      }
    }
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores.c[j][e] = Softmax<T>::exp(scores.c[j][e] - base[e / 2]);
        row_sum[e / 2] += scores.c[j][e];
      }
    }
  }

  /// What rows of the output are to be multiplied by, 0 where they have seen no key; lse[query] =
  /// log(sum of e^score) of those below `queries`, unless it is null.
  __device__ __forceinline__ void finish(int first_row, int queries, float* lse,
                                         float (&inverse)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = over_row(row_sum[r], [](float x, float y) { return x + y; });
      inverse[r] = sum > 0 ? 1.0F / sum : 0.0F;
      const int query = first_row + row_of(2 * r);
      if (lse != nullptr && lane_of_warp() % 4 == 0 && query < queries)
        lse[query] = row_max[r] * Softmax<T>::kLn2 + logf(sum);
    }
  }
};

template <int kKeys>
__device__ __forceinline__ void drop_probabilities(WarpTile<kKeys>& p, const AttentionSetting& s,
                                                   int sample, int head, int first_row,
                                                   int first_key) {
  const std::uint32_t kept = KeptOfTile<kKeys, false>(s, sample, head, first_row, first_key).bits();
#pragma unroll
  for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      p.c[j][e] *= dropout_factor(s, kept, j, e);
    }
  }
}

template <typename T>
struct ForwardOperands {
  HeadsView<const T> q, k, v;
  HeadsView<T> out;
  float* lse;  // or null
};

template <typename T, int kDim, Masking kMasking>
__global__ void __launch_bounds__(ForwardTiles<T, kDim>::kThreads, kLeastBlocks<T>)
    attention_forward(AttentionSetting s, ForwardOperands<T> a) {
  using Tiles = ForwardTiles<T, kDim>;
  using Block = ForwardBlock<Tiles, kMasking>;
  constexpr int kPitchT = kPitch<T, kDim>, kKeys = Tiles::kKeys;
  T* const q_tile = dynamic_shared<T>();
  T* const k_tile = q_tile + Tiles::kQueries * kPitchT;
  T* const v_tile = k_tile + kKeys * kPitchT;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  float* const staging =
      reinterpret_cast<float*>(v_tile + kKeys * kPitchT) + warp * kStaging<T, kKeys>;
  const auto block = Block::of(s);
  const int first_row = block.first_query + warp * kWarpRows;

  if (block.first_tile < block.end_tile) {  // else nobody would wait for these copies
    begin_tile<T, kDim, Tiles::kQueries>(q_tile, a.q.matrix(s, block.sample, s.queries, block.head),
                                         block.first_query);
    block.template begin_keys<T, kDim>(s, a.k, block.first_tile * kKeys, k_tile);
    commit_copies();
  }
  SeenRows rows;
  if constexpr (kMasking != Masking::causal) {
    rows.take(first_row, block.queries, [&](int row) { return block.seen(s, row); });
  }
  WarpTile<kDim> out;
  RunningSoftmax<T> softmax;
  for (int tile = block.first_tile; tile < block.end_tile; ++tile) {
    const int first_key = tile * kKeys;
    wait_for_copies<0>();
    __syncthreads();  // keys are there; nobody reads the last values any more
    block.template begin_keys<T, kDim>(s, a.v, first_key, v_tile);
    commit_copies();
    WarpTile<kKeys> p =
        product_of_rows<T, kDim, kKeys>(q_tile + warp * kWarpRows * kPitchT, k_tile);
    float tile_max[2] = {kMasked, kMasked};
    mask_tile<T, kMasking>(p, s, rows, block.history + first_row, first_key, tile_max);
    softmax.add(p, tile_max, out);
    if (kMasking != Masking::cached && s.dropped)
      drop_probabilities(p, s, block.sample, block.head, first_row, first_key);
    wait_for_copies<0>();
    __syncthreads();  // values are there; nobody reads these keys any more
    if (tile + 1 < block.end_tile)
      block.template begin_keys<T, kDim>(s, a.k, first_key + kKeys, k_tile);
    commit_copies();
    add_product<T, kDim, kKeys, kDim>(out, p, v_tile, staging);
  }
  float inverse[2];
  float* const lse =
      a.lse == nullptr ? nullptr : a.lse + std::int64_t{block.head_index} * s.queries;
  softmax.finish(first_row, s.queries, lse, inverse);
  store_tile(out, a.out.matrix(s, block.sample, s.queries, block.head), first_row, 0, inverse);
}

/// delta[row] = out . d_out over a head's columns, which equals the sum over keys of P dP (equation
/// 4 of the paper): one warp a row.
template <typename T>
__global__ void attention_delta(AttentionSetting s, HeadsView<const T> out,
                                HeadsView<const T> d_out, float* delta) {
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const std::int64_t rows = std::int64_t{s.samples} * s.heads * s.queries;
  const std::int64_t row = std::int64_t{blockIdx.x} * warps + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= rows) return;
  const int query = static_cast<int>(row % s.queries);
  const int head_index = static_cast<int>(row / s.queries);
  const auto x = out.matrix(s, head_index / s.heads, s.queries, head_index % s.heads);
  const auto y = d_out.matrix(s, head_index / s.heads, s.queries, head_index % s.heads);
  float sum = 0;
  for (int i = lane_of_warp(); i < out.dim; i += kWarp) {
    sum = fmadd(load_one(x.data + query * x.ld + i), load_one(y.data + query * y.ld + i), sum);
  }
  sum = warp_sum(sum);
  if (lane_of_warp() == 0) delta[row] = sum;
}

/// One warp merges a row of one head (MergeAttention).
template <typename T>
struct MergeOperands {
  HeadsView<const T> x;
  HeadsView<float> out;
  const float* x_lse;
  float* lse;
  int heads, queries;
  std::int64_t rows;  // of all heads
};
template <typename T>
__global__ void attention_merge(MergeOperands<T> a) {
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const std::int64_t row = std::int64_t{blockIdx.x} * warps + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= a.rows) return;
  const std::int64_t query = row % a.queries, head = row / a.queries % a.heads,
                     at = row / a.queries / a.heads * a.queries + query;
  const MergedLse merged = merged_lse(a.lse[row], a.x_lse[row]);
  const T* const x = a.x.data + at * a.x.ld + head * a.x.dim;
  float* const out = a.out.data + at * a.out.ld + head * a.out.dim;
  for (int i = lane_of_warp(); i < a.out.dim; i += kWarp) {
    out[i] = fmadd(merged.of_second, load_one(x + i), merged.of_first * out[i]);
  }
  __syncwarp();  // all lanes have read
  if (lane_of_warp() == 0) a.lse[row] = merged.lse;
}

template <typename T>
struct BackwardOperands {
  HeadsView<const T> q, k, v, d_out;
  HeadsView<T> d_q;
  HeadsView<std::byte> d_k, d_v;  // of T or f32 elements
  bool wide_keys, add_keys;  // whether these are f32 where T is not, and whether they are added to
  const float* lse;
  const float* delta;
};

/// What a backward block owns: the gradient of some keys, or of some queries.
enum class Side : std::uint8_t { keys, queries };

/// Tile sizes of a backward kernel: rows are what a block owns, columns what it walks over.
template <typename T, int kDim, Side kSide>
struct BackwardTiles {
  static constexpr bool kNarrow = kDim <= kNarrowDim;
  static constexpr int kWarps = sizeof(T) == 2 ? 4 : kNarrow ? 2 : 1, kThreads = kWarps * kWarp;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kColumns = !kNarrow                                                 ? 16
                                  : sizeof(T) == 2 && kDim <= 64 && kSide == Side::queries ? 64
                                                                                           : 32;
  static constexpr int kStages = sizeof(T) == 2 && kNarrow ? 2 : 1;
  /// Sums live in registers, which hold so many columns of two gradients; a wider head is cut, and
  /// its scores computed once for each piece.
  static constexpr int kMostPiece = kSide == Side::queries ? 256 : sizeof(T) == 2 ? 128 : 64;
  static constexpr int kPiece = kDim < kMostPiece ? kDim : kMostPiece;
  static constexpr int kPieces = kDim / kPiece;
  static constexpr int kSharedBytes =
      (2 * kRows + 2 * kStages * kColumns) * kPitch<T, kDim> * static_cast<int>(sizeof(T)) +
      kWarps * kStaging<T, kColumns> * static_cast<int>(sizeof(float));
  static_assert(kSharedBytes <= kMostSharedBytes);
};

/// What a backward block owns, and the columns that it walks over: those of every query head that
/// reads its kv head, one head after another; for queries, of the one. The longest walks come
/// first: of early keys, of late queries.
template <typename T, int kDim, Side kSide, Masking kMasking>
struct BackwardBlock {
  using Tiles = BackwardTiles<T, kDim, kSide>;
  static constexpr bool kByKeys = kSide == Side::keys;

  int sample, own_head;  // a kv head, or a query head
  int first_row, piece;
  int first_head;  // of queries
  int first_tile, tiles, steps;

  static __device__ __forceinline__ BackwardBlock of(const AttentionSetting& s) {
    constexpr int kRows = Tiles::kRows, kColumns = Tiles::kColumns;
    const int own_heads = s.samples * (kByKeys ? s.kv_heads : s.heads);
    const int rows = rows_of_sample(s), others = kByKeys ? s.queries : s.keys;
    const int blocks = (rows + kRows - 1) / kRows;
    const int unit = static_cast<int>(blockIdx.x) / Tiles::kPieces;
    const int order = unit / own_heads;
    const int own_head = unit % own_heads % (kByKeys ? s.kv_heads : s.heads);
    const int first_row = (kByKeys ? order : blocks - 1 - order) * kRows;
    const int first_head = kByKeys ? std::max(own_head * s.group - s.skip, 0) : own_head;
    const int end_head =
        kByKeys ? std::min((own_head + 1) * s.group - s.skip, s.heads) : own_head + 1;
    const int sample = unit % own_heads / (kByKeys ? s.kv_heads : s.heads);
    const int end_row = std::min(first_row + kRows, rows);
    TokenRange columns{kByKeys ? std::max(first_row - s.first, 0) : 0,
                       kByKeys ? others : s.first + end_row};
    if constexpr (kMasking == Masking::ranges) {
      columns = {seen(s, sample, first_row).begin, seen(s, sample, end_row - 1).end};
    }
    const int first_tile = columns.begin / kColumns;
    const int tiles = std::max((columns.end + kColumns - 1) / kColumns - first_tile, 0);
    return {.sample = sample,
            .own_head = own_head,
            .first_row = first_row,
            .piece = static_cast<int>(blockIdx.x) % Tiles::kPieces * Tiles::kPiece,
            .first_head = first_head,
            .first_tile = first_tile,
            .tiles = tiles,
            .steps = (end_head - first_head) * tiles};
  }
  /// How many keys or queries a sample has.
  static __device__ __forceinline__ int rows_of_sample(const AttentionSetting& s) {
    return kByKeys ? s.keys : s.queries;
  }
  /// The columns that a row has to do with.
  static __device__ __forceinline__ TokenRange seen(const AttentionSetting& s, int sample,
                                                    int row) {
    if constexpr (!kByKeys) return seen_keys(s, sample, s.first + row);
    const TokenRange tokens = seeing_queries(s, sample, row);
    // By value: std::min() of one of these and of a parameter's field would put it into memory.
    const int queries = s.queries, begin = tokens.begin - s.first, end = tokens.end - s.first;
    const int first = begin < 0         ? 0
                      : begin < queries ? begin
                                        : queries,
              last = end < queries ? end : queries;
    return {first, last < first ? first : last};
  }
  __device__ __forceinline__ int head(int step) const { return first_head + step / tiles; }
  __device__ __forceinline__ int first_column(int step) const {
    return (first_tile + step % tiles) * Tiles::kColumns;
  }

  /// Begins to copy what the block owns.
  __device__ __forceinline__ void begin_rows(const AttentionSetting& s,
                                             const BackwardOperands<T>& a, T* score_rows,
                                             T* value_rows) const {
    const auto begin = [&](T* to, const HeadsView<const T>& x) {
      begin_tile<T, kDim, Tiles::kRows>(to, x.matrix(s, sample, rows_of_sample(s), own_head),
                                        first_row);
    };
    begin(score_rows, kByKeys ? a.k : a.q);
    begin(value_rows, kByKeys ? a.v : a.d_out);
  }
  /// Begins to copy a step's columns: queries and d_out, or keys and values.
  __device__ __forceinline__ void begin_columns(const AttentionSetting& s,
                                                const BackwardOperands<T>& a, int step,
                                                T* columns) const {
    constexpr int kTile = Tiles::kColumns * kPitch<T, kDim>;
    T* const to = columns + step % Tiles::kStages * 2 * kTile;
    const int from_head = kByKeys ? head(step) : s.kv_head_of(head(step));
    const auto begin = [&](T* tile, const HeadsView<const T>& x) {
      begin_tile<T, kDim, Tiles::kColumns>(
          tile, x.matrix(s, sample, kByKeys ? s.queries : s.keys, from_head), first_column(step));
    };
    begin(to, kByKeys ? a.q : a.k);
    begin(to + kTile, kByKeys ? a.d_out : a.v);
    commit_copies();
  }

  /// Waits for a step's columns, and begins to copy the next step's where there is room for both.
  __device__ __forceinline__ void take_columns(const AttentionSetting& s,
                                               const BackwardOperands<T>& a, int step,
                                               T* columns) const {
    if constexpr (Tiles::kStages == 1) begin_columns(s, a, step, columns);
    if (Tiles::kStages == 2 && step + 1 < steps) {
      begin_columns(s, a, step + 1, columns);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();
  }

  /// Where a warp's tile of scores is.
  struct TilePlace {
    int head, first_row, first_column;
    SeenRows rows;
  };
  /// Scores become probabilities, dropped ones 0, and `d` of them becomes d of the scores:
  /// dS = P (dP - delta), times the slope of a cap.
  __device__ __forceinline__ void to_gradients(WarpTile<Tiles::kColumns>& p,
                                               WarpTile<Tiles::kColumns>& d,
                                               const AttentionSetting& s,
                                               const BackwardOperands<T>& a,
                                               const TilePlace& place) const {
    const float scale = s.scale * Softmax<T>::kLog2E;
    const float* const lse = a.lse + (std::int64_t{sample} * s.heads + place.head) * s.queries;
    const float* const delta = a.delta + (std::int64_t{sample} * s.heads + place.head) * s.queries;
    const auto row = [&](int, int e) { return place.first_row + row_of(e); };
    const auto column = [&](int j, int e) { return place.first_column + 8 * j + column_of(e); };
    std::uint32_t kept = ~0U;
    if (s.dropped) {
      kept = KeptOfTile<Tiles::kColumns, kByKeys>(s, sample, place.head, place.first_row,
                                                  place.first_column)
                 .bits();
    }
#pragma unroll
    for (int j = 0; j < Tiles::kColumns / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int query = kByKeys ? column(j, e) : row(j, e);
        const int key = kByKeys ? row(j, e) : column(j, e);
        const int at = std::min(query, s.queries - 1);
        const float factor = dropout_factor(s, kept, j, e);
        float score = p.c[j][e] * scale, slope = 1;
        bool sees = query < s.queries && key <= s.first + query;
        if constexpr (kMasking == Masking::ranges) {
          sees = place.rows.sees(e, column(j, e));
          if (s.soft_cap > 0) {
            const float t = tanh_of(p.c[j][e] * s.cap_scale);
            score = t * (s.soft_cap * Softmax<T>::kLog2E), slope = tanh_slope(t);
          }
        }
        const float exact = Softmax<T>::exp(score - lse[at] * Softmax<T>::kLog2E);
        const float probability = sees ? exact : 0.0F;
        p.c[j][e] = probability * factor;
        d.c[j][e] = probability * (d.c[j][e] * factor - delta[at]);
        if constexpr (kMasking == Masking::ranges) d.c[j][e] *= slope;
      }
    }
  }
};

/// Writes a warp's sums: of keys (or queries) and, by keys, of values.
template <typename T, int kDim, Side kSide, Masking kMasking, int kScores, int kValues>
__device__ __forceinline__ void store_gradients(
    const BackwardBlock<T, kDim, kSide, kMasking>& block, const AttentionSetting& s,
    const BackwardOperands<T>& a, int warp_row, const WarpTile<kScores>& d_score_rows,
    const WarpTile<kValues>& d_value_rows) {
  constexpr bool kByKeys = kSide == Side::keys;
  const auto store = [&]<typename G>(const auto& tile, const HeadsView<G>& to, float factor) {
    const float factors[2] = {factor, factor};
    store_tile(tile, to.matrix(s, block.sample, block.rows_of_sample(s), block.own_head), warp_row,
               block.piece, factors, kByKeys && a.add_keys);
  };
  if constexpr (!kByKeys) {
    store(d_score_rows, a.d_q, s.scale);
  } else {
    const auto store_keys = [&]<typename G>(G*) {
      const auto typed = [](const HeadsView<std::byte>& v) {
        return HeadsView<G>{reinterpret_cast<G*>(v.data), v.ld, v.dim};
      };
      store(d_score_rows, typed(a.d_k), s.scale);
      store(d_value_rows, typed(a.d_v), 1);
    };
    a.wide_keys ? store_keys(static_cast<float*>(nullptr)) : store_keys(static_cast<T*>(nullptr));
  }
}

template <typename T, int kDim, Side kSide, Masking kMasking>
__global__ void __launch_bounds__(BackwardTiles<T, kDim, kSide>::kThreads, kLeastBlocks<T>)
    attention_gradient(AttentionSetting s, BackwardOperands<T> a) {
  using Tiles = BackwardTiles<T, kDim, kSide>;
  using Block = BackwardBlock<T, kDim, kSide, kMasking>;
  constexpr bool kByKeys = kSide == Side::keys;
  constexpr int kPitchT = kPitch<T, kDim>, kRows = Tiles::kRows, kColumns = Tiles::kColumns;
  T* const score_rows = dynamic_shared<T>();           // keys, or queries
  T* const value_rows = score_rows + kRows * kPitchT;  // values, or d_out
  T* const columns = value_rows + kRows * kPitchT;     // the others, a stage after another
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  float* const staging =
      reinterpret_cast<float*>(columns + 2 * Tiles::kStages * kColumns * kPitchT) +
      warp * kStaging<T, kColumns>;
  const auto block = Block::of(s);
  const int warp_row = block.first_row + warp * kWarpRows;

  if (block.steps > 0) {  // else nobody would wait for these copies
    block.begin_rows(s, a, score_rows, value_rows);
    if constexpr (Tiles::kStages == 2) block.begin_columns(s, a, 0, columns);
  }
  SeenRows rows;
  if constexpr (kMasking == Masking::ranges) {
    rows.take(warp_row, Block::rows_of_sample(s),
              [&](int row) { return Block::seen(s, block.sample, row); });
  }
  WarpTile<Tiles::kPiece> d_score_rows;                // of keys, or queries
  WarpTile<kByKeys ? Tiles::kPiece : 8> d_value_rows;  // of values
  for (int step = 0; step < block.steps; ++step) {
    block.take_columns(s, a, step, columns);
    const T* const score_columns = columns + step % Tiles::kStages * 2 * kColumns * kPitchT;
    const T* const value_columns = score_columns + kColumns * kPitchT;
    const typename Block::TilePlace place{.head = block.head(step),
                                          .first_row = warp_row,
                                          .first_column = block.first_column(step),
                                          .rows = rows};
    WarpTile<kColumns> p =
        product_of_rows<T, kDim, kColumns>(score_rows + warp * kWarpRows * kPitchT, score_columns);
    WarpTile<kColumns> d =
        product_of_rows<T, kDim, kColumns>(value_rows + warp * kWarpRows * kPitchT, value_columns);
    block.to_gradients(p, d, s, a, place);
    if constexpr (kByKeys) {
      add_product<T, kDim, kColumns, Tiles::kPiece>(d_value_rows, p, value_columns + block.piece,
                                                    staging);
    }
    add_product<T, kDim, kColumns, Tiles::kPiece>(d_score_rows, d, score_columns + block.piece,
                                                  staging);
    __syncthreads();  // nobody reads these columns any more
  }
  store_gradients(block, s, a, warp_row, d_score_rows, d_value_rows);
}

}  // namespace tessera::kernels::cuda
