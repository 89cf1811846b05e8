// How attention is cut into tiles and units of work, and the scratch that one unit needs.
#pragma once

#include "core/math.hpp"
#include "kernels/api/attention.hpp"
#include "kernels/common/sight.hpp"
#include "kernels/cpu/hot/product.hpp"

namespace tessera::kernels {

inline constexpr std::int64_t kQueryChunk = 256;   // queries that share one packing of the keys
inline constexpr std::int64_t kMostBlockRows = 6;  // of scores that are made at once

/// Queries [t.begin, t.end) of one head: the unit of forward work.
struct AttentionUnit {
  std::int64_t sample, head;
  Range t;
};

/// One kv head and all query heads that read it: the unit of backward work.
struct KvHead {
  std::int64_t sample, kv_head;
};

/// Query heads that share a kv head, wherever these are.
constexpr std::int64_t group_of(const AttentionShape& s) {
  return s.group > 0 ? s.group : s.heads / s.kv_heads;
}
/// Query heads of kv head g that are here: those h with kv_head_of(h) = g.
constexpr Range query_heads(const AttentionShape& s, std::int64_t kv_head) {
  const std::int64_t first = kv_head * group_of(s) - s.skip;
  return intersect({first, first + group_of(s)}, {0, s.heads});
}

/// A head's columns are padded to whole vectors: of q and k, and of v and out.
struct PaddedDims {
  std::int64_t q, v;
  constexpr std::int64_t wider() const { return q > v ? q : v; }
};
constexpr PaddedDims padded_dims(const AttentionShape& s) {
  return {round_up(s.head_dim, 16), round_up(s.values(), 16)};
}

/// Floats of scratch for a forward unit: q, out, running maximum and parts of the sum; keys,
/// values; scores of some rows, and what of them is multiplied.
constexpr std::int64_t vector_attention_scratch(const AttentionShape& s) {
  const PaddedDims dims = padded_dims(s);
  return kQueryChunk * (dims.q + dims.v + 17) + kTile * (dims.q + dims.wider()) +
         2 * kMostBlockRows * kTile;
}
/// Floats of scratch for a backward unit of so many queries: d_q and delta of every query head;
/// keys twice, values, d_k, d_v, q, d_out; probabilities, their gradients, and what of them is
/// multiplied.
constexpr std::int64_t vector_attention_backward_scratch(const AttentionShape& s,
                                                         std::int64_t queries) {
  const std::int64_t group = group_of(s) < s.heads ? group_of(s) : s.heads;
  const PaddedDims dims = padded_dims(s);
  return round_up(group * queries, 16) + group * queries * dims.q +
         kTile * (3 * (dims.q + dims.v) + dims.wider()) + 5 * kTile * kTile / 2;
}

/// With instructions for matrices: rows that have their scores at once, keys that are packed at
/// once, and in the backward queries and keys of a tile.
inline constexpr std::int64_t kMatrixRows = 32, kMatrixKeys = 256, kBackwardQueries = 256,
                              kBackwardKeys = 128;
/// Columns of q and k as a depth of whole matrices of bf16, and of v and out likewise.
constexpr PaddedDims matrix_depths(const AttentionShape& s) {
  return {round_up(s.head_dim, 32), round_up(s.values(), 32)};
}
/// A row of scores in floats, so that rows lie in different sets of the first-level cache.
inline constexpr std::int64_t kMatrixScores = kMatrixKeys + 16;

/// The same with these, two bf16 in a float: q, out, maxima, sums; keys, values; scores.
constexpr std::int64_t matrix_attention_scratch(const AttentionShape& s) {
  const PaddedDims dims = padded_dims(s), depths = matrix_depths(s);
  return kQueryChunk * (depths.q / 2 + dims.v + 17) + kMatrixKeys * (depths.q + dims.v) / 2 +
         kMatrixRows * kMatrixScores;
}
/// d_k, d_v and transposed keys of all of so many keys; keys and values of a tile; q and d_out of
/// one, on the right in two ways; transposed d_q; lse, delta; probabilities and gradients of
/// scores.
constexpr std::int64_t matrix_attention_backward_scratch(const AttentionShape& s,
                                                         std::int64_t keys) {
  const PaddedDims dims = padded_dims(s), depths = matrix_depths(s);
  const std::int64_t all = round_up(keys, kBackwardKeys);
  return all * (dims.q + dims.v + dims.q / 2) + kBackwardKeys * (depths.q + depths.v) / 2 +
         kBackwardQueries * (depths.q + depths.v + dims.q + dims.v) / 2 +
         kBackwardQueries * (dims.q + 2) +
         kBackwardQueries * (2 * kMatrixRows + kBackwardKeys) / 2 + 2 * kMatrixRows * kMatrixRows;
}

/// What a unit of a type needs whatever the instruction set, in whole lines of the cache.
constexpr std::int64_t attention_scratch(const AttentionShape& s, DType type) {
  const std::int64_t vectors = vector_attention_scratch(s),
                     matrices = type == DType::bf16 ? matrix_attention_scratch(s) : 0;
  return round_up(vectors > matrices ? vectors : matrices, 16);
}
constexpr std::int64_t attention_backward_scratch(const AttentionShape& s, DType type,
                                                  std::int64_t queries, std::int64_t keys) {
  const std::int64_t vectors = vector_attention_backward_scratch(s, queries),
                     matrices =
                         type == DType::bf16 ? matrix_attention_backward_scratch(s, keys) : 0;
  return round_up(vectors > matrices ? vectors : matrices, 16);
}

}  // namespace tessera::kernels
