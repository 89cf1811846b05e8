// Gradients of attention to bf16 with a processor's instructions for matrices (Dao 2023,
// FlashAttention-2, algorithm 2, with queries outside and keys inside). Scores are transposed, keys
// by queries: as rows of keys, probabilities and gradients of scores are the left operands of d_v
// and d_k, and in pairs of keys the right one of d_q, which is made transposed. Other types are as
// with AVX-512.
#include "kernels/cpu/hot/attention_matrices.hpp"
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels {
namespace isa_v4 {
extern const HotKernels kTable;
}

namespace TESSERA_ISA {
namespace {

/// What the backward of a kv head works in.
struct BackwardScratch {
  BackwardScratch(const AttentionShape& shape, std::int64_t keys, float* scratch)
      : dims(padded_dims(shape)),
        q_words(matrix_depths(shape).q / 2),
        v_words(matrix_depths(shape).v / 2),
        d_k(take<float>(scratch, round_up(keys, kBackwardKeys) * dims.q)),
        d_v(take<float>(scratch, round_up(keys, kBackwardKeys) * dims.v)),
        k_turned(take<Pair>(scratch, round_up(keys, kBackwardKeys) * dims.q / 2)),
        k(take<Pair>(scratch, kBackwardKeys * q_words)),
        v(take<Pair>(scratch, kBackwardKeys * v_words)),
        q_turned{take<Pair>(scratch, kBackwardQueries * q_words), q_words * kLanes},
        d_out_turned{take<Pair>(scratch, kBackwardQueries * v_words), v_words * kLanes},
        q{take<Pair>(scratch, kBackwardQueries * dims.q / 2), kBackwardQueries / 2 * kLanes},
        d_out{take<Pair>(scratch, kBackwardQueries * dims.v / 2), kBackwardQueries / 2 * kLanes},
        d_q(take<float>(scratch, kBackwardQueries * dims.q)),
        lse(take<float>(scratch, kBackwardQueries)),
        delta(take<float>(scratch, kBackwardQueries)),
        p(take<Pair>(scratch, kSide * kBackwardQueries / 2)),
        d_s(take<Pair>(scratch, kSide * kBackwardQueries / 2)),
        d_s_right{take<Pair>(scratch, kBackwardKeys / 2 * kBackwardQueries),
                  kBackwardKeys / 2 * kLanes},
        scores(take<float>(scratch, kSide * kSide)),
        d_p(take<float>(scratch, kSide * kSide)) {}

  PaddedDims dims;                // Dp, Ep
  std::int64_t q_words, v_words;  // of rows of q and k, of d_out and v
  float *d_k, *d_v;               // of a document's keys, (S, Dp), (S, Ep)
  Pair* k_turned;                 // of each 128 of them (Dp, 128), on the left
  Pair *k, *v;                    // of 128 of them, on the left
  Right q_turned, d_out_turned;   // (D, 256), (E, 256)
  Right q, d_out;                 // (256, D), (256, E)
  float* d_q;                     // (Dp, 256)
  float *lse, *delta;             // (256): log2 of the sum of exponentials; of P dP over keys
  Pair *p, *d_s;                  // of 32 keys (32, 256), on the left
  Right d_s_right;                // (128, 256)
  float *scores, *d_p;            // (32, 32)
};

/// Queries of one head and of one document, which are packed, and keys of it. Places are counted
/// from the first of these queries and keys.
struct BackwardTile {
  Sight sight;
  Range document, of_document, of_call;  // queries, keys of it that are here, and queries likewise
  Range queries, keys;
  bool first_head;  // of those that the keys are for

  /// Queries that see any of some keys, and keys that any of some queries sees, in whole matrices.
  Range that_see(Range some) const {
    return whole(sight.queries_of(Range{keys.begin + some.begin, keys.begin + some.end}, document),
                 queries);
  }
  Range seen_by(Range some) const {
    return whole(
        sight.keys_of(Range{queries.begin + some.begin, queries.begin + some.end}, of_document),
        keys);
  }
  /// Sums of keys begin where no query of the call before these has seen any of them, and those of
  /// queries where these have seen no key before.
  Write write_of_keys(Range some) const {
    const Range see = sight.queries_of(keys.begin + some.begin, document);
    const bool first = first_head && at_least(see.begin, of_call.begin) >= queries.begin;
    return first ? Write::overwrite : Write::add;
  }
  Write write_of_queries(Range some) const {
    const Range seen = sight.keys_of(queries.begin + some.begin, of_document);
    return seen.begin >= keys.begin ? Write::overwrite : Write::add;
  }
  /// Whether each of some queries sees each of some keys.
  bool sees_all(Range of_queries, Range of_keys) const {
    const Range first = sight.keys_of(queries.begin + of_queries.begin, of_document),
                last = sight.keys_of(queries.begin + of_queries.end - 1, of_document);
    return last.begin <= keys.begin + of_keys.begin && first.end >= keys.begin + of_keys.end;
  }
  /// Those of 32 queries from `first` on that see a key.
  __mmask32 lanes_that_see(std::int64_t key, std::int64_t first) const {
    const Range see = sight.queries_of(keys.begin + key, document);
    return first_of(see.end - queries.begin - first) & ~first_of(see.begin - queries.begin - first);
  }

 private:
  static Range whole(Range r, Range of) {
    const Range within{at_least(r.begin, of.begin) - of.begin, at_most(r.end, of.end) - of.begin};
    if (within.empty()) return {};
    return {within.begin / kSide * kSide, round_up(within.end, kSide)};
  }
};

/// f(range) for 32 of `count` at a time.
template <typename F>
TESSERA_INLINE void for_sides(std::int64_t count, F&& f) {
  for (std::int64_t i = 0; i < count; i += kSide) f(Range{i, at_most(count, i + kSide)});
}

/// 32 queries and 32 keys of a tile, or fewer at its ends.
struct Corner {
  Range queries, keys;
};
/// What there is of dropout and of a cap for them: factors of probabilities, and slopes.
struct Altered {
  alignas(64) float factors[kSide * kSide];
  alignas(64) float slopes[kSide * kSide];
};

/// Caps scores, and looks up dropout's factors, which lie along keys.
void alter(const AttentionBackward& a, const TileDropout& drop, const BackwardTile& tile,
           const Corner& of, const BackwardScratch& x, Altered& altered) {
  if (a.shape.soft_cap > 0) {
    cap_row(x.scores, kSide * kSide / kLanes, a.shape.scale, a.shape.soft_cap, altered.slopes);
  } else {
    for (float& slope : altered.slopes) slope = 1.0F;
  }
  if (!drop) {
    for (float& factor : altered.factors) factor = 1.0F;
    return;
  }
  alignas(64) float rows[kSide * kSide] = {};
  for (std::int64_t i = 0; i < of.queries.count(); ++i) {
    drop.factors(tile.queries.begin + of.queries.begin + i, tile.keys.begin + of.keys.begin,
                 of.keys.count(), rows + i * kSide);
  }
  for (std::int64_t i = 0; i < kSide; i += kLanes) {
    for (std::int64_t j = 0; j < kSide; j += kLanes)
      turn_square(rows + i * kSide + j, kSide * sizeof(float), altered.factors + j * kSide + i,
                  kSide);
  }
}

/// Sixteen queries and one key.
struct Sixteen {
  Vec p, d_s;
};
/// Also where an infinity that is not seen has made it no number.
TESSERA_INLINE Vec zero_but_for(__mmask16 that_see, Vec x) {
  x.part[0] = _mm512_maskz_mov_ps(that_see, x.part[0]);
  return x;
}
/// Their probabilities, of which y is the log to base 2, and gradients of scores: 0 of those that
/// do not see the key.
TESSERA_INLINE Sixteen gradients_of(const Vec& y, const Vec& d_p, const Vec& delta,
                                    __mmask16 that_see) {
  const Vec p = power_of_two_at(y, that_see);
  return {p, zero_but_for(that_see, p * (d_p - delta))};
}
/// The same with dropout's factors and a cap's slopes.
TESSERA_INLINE Sixteen gradients_of(const Vec& y, const Vec& d_p, const Vec& delta,
                                    __mmask16 that_see, const Vec& factors, const Vec& slopes) {
  const Vec p = power_of_two_at(y, that_see);
  return {p * factors, zero_but_for(that_see, p * (d_p * factors - delta) * slopes)};
}

/// Scores and gradients of probabilities, 32 x 32, become probabilities and gradients of scores,
/// rounded: 0 of what is not seen. `altered` is null where nothing is.
template <bool kAltered>
void gradients_of_scores(const AttentionBackward& a, const BackwardTile& tile, const Corner& of,
                         const BackwardScratch& x, const Altered* altered) {
  const bool all = tile.sees_all(of.queries, of.keys);
  const Vec factor(a.shape.soft_cap > 0 ? kLog2E : a.shape.scale * kLog2E);
  Vec less[2], delta[2];
  for (int j = 0; j < 2; ++j) {
    less[j] = Vec(0.0F) - load(x.lse + of.queries.begin + j * kLanes, kLanes);
    delta[j] = load(x.delta + of.queries.begin + j * kLanes, kLanes);
  }
  constexpr std::int64_t kWords = kBackwardQueries / 2;
  Pair* p = x.p + of.queries.begin / 2;
  Pair* d_s = x.d_s + of.queries.begin / 2;
  const Right right = x.d_s_right.from(of.queries.begin, of.keys.begin);
  for (std::int64_t i = 0; i < kSide; i += 2) {
    __m512i of_key[2];
    for (std::int64_t key = i; key < i + 2; ++key) {
      __mmask32 lanes = ~__mmask32{0};
      if (!all) lanes = tile.lanes_that_see(of.keys.begin + key, of.queries.begin);
      if (key >= of.keys.count()) lanes = 0;
      Sixteen half[2];
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        const std::int64_t place = key * kSide + j * kLanes;
        const Vec y = fmadd(load(x.scores + place, kLanes), factor, less[j]),
                  gradient = load(x.d_p + place, kLanes);
        const auto that_see = static_cast<__mmask16>(lanes >> (j * kLanes));
        if constexpr (kAltered) {
          half[j] =
              gradients_of(y, gradient, delta[j], that_see, load(altered->factors + place, kLanes),
                           load(altered->slopes + place, kLanes));
        } else {
          half[j] = gradients_of(y, gradient, delta[j], that_see);
        }
      }
      of_key[key - i] = rounded(half[0].d_s, half[1].d_s);
      _mm512_storeu_si512(p + key * kWords, rounded(half[0].p, half[1].p));
      _mm512_storeu_si512(d_s + key * kWords, of_key[key - i]);
    }
    __m512i both[2];
    Pairs::join(of_key[0], of_key[1], both);
    _mm512_storeu_si512(right.data + i / 2 * kLanes, both[0]);
    _mm512_storeu_si512(right.data + right.group + i / 2 * kLanes, both[1]);
  }
}

/// Of 32 keys and the queries that see them: gradients of scores, and what they give to d_k and
/// d_v.
void backward_keys(const AttentionBackward& a, const TileDropout& drop, const BackwardTile& tile,
                   Range keys, const BackwardScratch& x) {
  const Range see = tile.that_see(keys);
  if (see.empty()) return;
  const auto k = Matrices::rows_as_left(x.k + keys.begin * x.q_words, x.q_words),
             v = Matrices::rows_as_left(x.v + keys.begin * x.v_words, x.v_words);
  const TileC scores{x.scores, kSide}, d_p{x.d_p, kSide};
  for (std::int64_t t = see.begin; t < see.end; t += kSide) {
    multiply_blocks(2, 2, x.q_words, k, x.q_turned.from(t, 0), scores, Write::overwrite);
    multiply_blocks(2, 2, x.v_words, v, x.d_out_turned.from(t, 0), d_p, Write::overwrite);
    const Corner of{{t, at_most(t + kSide, tile.queries.count())}, keys};
    if (a.shape.soft_cap > 0 || drop) {
      Altered altered;
      alter(a, drop, tile, of, x, altered);
      gradients_of_scores<true>(a, tile, of, x, &altered);
    } else {
      gradients_of_scores<false>(a, tile, of, x, nullptr);
    }
  }
  constexpr std::int64_t kWords = kBackwardQueries / 2;
  const std::int64_t row = tile.keys.begin - tile.of_document.begin + keys.begin;
  const Write write = tile.write_of_keys(keys);
  multiply_blocks(2, x.dims.v / kLanes, see.count() / 2,
                  Matrices::rows_as_left(x.p + see.begin / 2, kWords), x.d_out.from(0, see.begin),
                  {x.d_v + row * x.dims.v, x.dims.v}, write);
  multiply_blocks(2, x.dims.q / kLanes, see.count() / 2,
                  Matrices::rows_as_left(x.d_s + see.begin / 2, kWords), x.q.from(0, see.begin),
                  {x.d_k + row * x.dims.q, x.dims.q}, write);
}

/// Adds to d_q, d_k and d_v what a tile gives.
void backward_tile(const AttentionBackward& a, const KvHead& unit, const TileDropout& drop,
                   const BackwardTile& tile, const BackwardScratch& x) {
  const std::int64_t s = tile.keys.begin, count = tile.keys.count();
  pack_rows(head_of(a.k, unit.sample, s, count, unit.kv_head, a.shape.head_dim),
            round_up(count, kSide), x.q_words, x.k);
  pack_rows(head_of(a.v, unit.sample, s, count, unit.kv_head, a.shape.values()),
            round_up(count, kSide), x.v_words, x.v);
  for_sides(count, [&](Range keys) { backward_keys(a, drop, tile, keys, x); });
  const std::int64_t row = s - tile.of_document.begin,
                     of_call = tile.queries.begin - first_query_of(a);
  for_sides(tile.queries.count(), [&](Range queries) {
    const Range seen = tile.seen_by(queries);
    if (seen.empty()) return;
    const std::int64_t words = Matrices::words_of(count);
    ask_for(head_of(a.d_q, drop.sample, of_call + queries.begin, queries.count(), drop.head,
                    a.shape.head_dim));
    const Pair* k = x.k_turned + row * x.dims.q / 2 + seen.begin / 2 * kLanes;
    multiply_blocks(x.dims.q / kLanes, 2, seen.count() / 2,
                    {k, kLanes, kLanes * kLanes, kLanes * words},
                    x.d_s_right.from(queries.begin, seen.begin),
                    {x.d_q + queries.begin, kBackwardQueries}, tile.write_of_queries(queries));
  });
}

/// Queries of a head, as the call counts them, and what is there for them.
struct QueryRows {
  QueryRows(const AttentionBackward& a, const TileDropout& drop, Range queries)
      : q(head_of(a.q, drop.sample, queries.begin, queries.count(), drop.head, a.shape.head_dim)),
        out(head_of(a.out, drop.sample, queries.begin, queries.count(), drop.head,
                    a.shape.values())),
        d_out(head_of(a.d_out, drop.sample, queries.begin, queries.count(), drop.head,
                      a.shape.values())) {}
  Block q, out, d_out;
};
/// Takes queries.
void begin_queries(const AttentionBackward& a, const TileDropout& drop, Range queries,
                   const BackwardScratch& x) {
  const QueryRows rows(a, drop, queries);
  const std::int64_t count = queries.count(), all = round_up(count, kSide);
  pack_turned(rows.q, all, x.q_turned.data);
  pack_turned(rows.d_out, all, x.d_out_turned.data);
  pack_pairs(rows.q, x.q.group, x.q.data);
  pack_pairs(rows.d_out, x.d_out.group, x.d_out.data);
  row_products(rows.out, rows.d_out, x.delta);
  const float* lse = reinterpret_cast<const float*>(a.lse.data) +
                     (drop.sample * a.shape.heads + drop.head) * a.q.shape[1] + queries.begin;
  for (std::int64_t i = 0; i < count; ++i)
    x.lse[i] = lse[i] == kMasked ? 0 : lse[i] * kLog2E;  // of no key at all
  for (std::int64_t i = count; i < all; ++i) x.lse[i] = -kMasked, x.delta[i] = 0;
}

/// d_q = what was made of it transposed, scaled.
void finish_queries(const AttentionBackward& a, const TileDropout& drop, Range queries,
                    const BackwardScratch& x) {
  const Block to =
      head_of(a.d_q, drop.sample, queries.begin, queries.count(), drop.head, a.shape.head_dim);
  for (std::int64_t t = 0; t < to.rows; t += kLanes) {
    for (std::int64_t c = 0; c < to.columns; c += kSide) {
      alignas(64) float turned[kLanes * kSide];
      for (std::int64_t j = 0; j < kSide && c + j < x.dims.q; j += kLanes)
        turn_square(x.d_q + (c + j) * kBackwardQueries + t, kBackwardQueries * sizeof(float),
                    turned + j, kSide);
      for (std::int64_t i = 0; i < at_most(kLanes, to.rows - t); ++i)
        write_rounded(turned + i * kSide, a.shape.scale, at_most(kSide, to.columns - c),
                      to.row<bf16>(t + i) + c);
    }
  }
}

/// Takes a document's keys.
void begin_keys(const AttentionBackward& a, const KvHead& unit, Range keys,
                const BackwardScratch& x) {
  const auto rows = [&](const View& view, std::int64_t s, std::int64_t dim) {
    return head_of(view, unit.sample, keys.begin + s, at_most(kBackwardKeys, keys.count() - s),
                   unit.kv_head, dim);
  };
  for (std::int64_t s = 0; s < keys.count(); s += kBackwardKeys) {
    ask_for(rows(a.v, s, a.shape.values()));
    if (s + kBackwardKeys < keys.count()) ask_for(rows(a.k, s + kBackwardKeys, a.shape.head_dim));
    Matrices::pack_turned_left(rows(a.k, s, a.shape.head_dim), x.k_turned + s * x.dims.q / 2);
  }
}

/// Writes gradients of keys or values.
void finish_keys(const float* from, std::int64_t ld, float factor, const Block& to, Write write) {
  if (to.type != DType::bf16 || write == Write::add) return unpack(from, ld, factor, to, write);
  for (std::int64_t t = 0; t < to.rows; ++t)
    write_rounded(from + t * ld, factor, to.columns, to.row<bf16>(t));
}

/// A document's queries and keys that are here.
struct Document {
  Sight sight;
  Range all, queries, keys;
};

/// What some queries of a head and the keys that they see give.
void backward_queries(const AttentionBackward& a, const KvHead& unit, const TileDropout& drop,
                      const Document& of, Range queries, const BackwardScratch& x) {
  const std::int64_t first = first_query_of(a);
  const auto ask_from = [&](std::int64_t t) {
    const QueryRows next(a, drop,
                         {t - first, at_most(t + kBackwardQueries, of.queries.end) - first});
    ask_for(next.q), ask_for(next.out), ask_for(next.d_out);
  };
  if (queries.begin == of.queries.begin) ask_from(queries.begin);
  const Range of_call{queries.begin - first, queries.end - first};
  begin_queries(a, drop, of_call, x);
  ask_from(queries.end);
  for_sides(queries.count(), [&](Range some) {
    const Range tokens{queries.begin + some.begin, queries.begin + some.end};
    if (!of.sight.keys_of(tokens, of.keys).empty()) return;
    for (std::int64_t c = 0; c < x.dims.q; ++c)
      clear(x.d_q + c * kBackwardQueries + some.begin, kSide);
  });
  const Range seen = of.sight.keys_of(queries, of.keys);
  const std::int64_t before = (seen.begin - of.keys.begin) / kBackwardKeys * kBackwardKeys;
  for (std::int64_t s = of.keys.begin + before; s < seen.end; s += kBackwardKeys) {
    const Range keys{s, at_most(s + kBackwardKeys, of.keys.end)};
    backward_tile(a, unit, drop,
                  {of.sight, of.all, of.keys, of.queries, queries, keys,
                   drop.head == query_heads(a.shape, unit.kv_head).begin},
                  x);
  }
  finish_queries(a, drop, of_call, x);
}

/// Gradients that one document's queries and keys give, in tiles that begin where it does, or where
/// the queries do.
void backward_document(const AttentionBackward& a, const DropoutRule& rule, const KvHead& unit,
                       Range document, const BackwardScratch& x) {
  const KeyPart part = part_of(a);
  const std::int64_t first = first_query_of(a), b = unit.sample;
  const Range heads = query_heads(a.shape, unit.kv_head);
  const Document of{.sight = sight_of(a.shape.mask, a.shape.window, part.tokens),
                    .all = document,
                    .queries = intersect(document, {first, first + a.q.shape[1]}),
                    .keys = part.keys_of(document)};
  begin_keys(a, unit, of.keys, x);
  for_sides(of.keys.count(), [&](Range some) {
    const Range tokens{of.keys.begin + some.begin, of.keys.begin + some.end};
    const bool seen = !intersect(of.sight.queries_of(tokens, document), of.queries).empty();
    if (seen && !heads.empty()) return;
    clear(x.d_k + some.begin * x.dims.q, kSide * x.dims.q);
    clear(x.d_v + some.begin * x.dims.v, kSide * x.dims.v);
  });
  for (std::int64_t h = heads.begin; h < heads.end; ++h) {
    const TileDropout drop{a.dropout, rule, b, h, part};
    for (std::int64_t t = of.queries.begin; t < of.queries.end; t += kBackwardQueries)
      backward_queries(a, unit, drop, of, {t, at_most(t + kBackwardQueries, of.queries.end)}, x);
  }
  finish_keys(x.d_k, x.dims.q, a.shape.scale,
              head_of(a.d_k, b, of.keys.begin, of.keys.count(), unit.kv_head, a.shape.head_dim),
              a.write);
  finish_keys(x.d_v, x.dims.v, 1.0F,
              head_of(a.d_v, b, of.keys.begin, of.keys.count(), unit.kv_head, a.shape.values()),
              a.write);
}

/// Queries of documents of which no keys are here get nothing.
void clear_queries(const AttentionBackward& a, const KvHead& unit, Range queries) {
  const Range heads = query_heads(a.shape, unit.kv_head);
  for (std::int64_t h = heads.begin; h < heads.end; ++h) {
    const Block to =
        head_of(a.d_q, unit.sample, queries.begin, queries.count(), h, a.shape.head_dim);
    for (std::int64_t t = 0; t < to.rows; ++t) write_zeros(to.columns, to.row<bf16>(t));
  }
}

void backward_unit(const AttentionBackward& a, const DropoutRule& rule, const KvHead& unit,
                   float* scratch) {
  const KeyPart part = part_of(a);
  const BackwardScratch x(a.shape, part.count, scratch);
  const std::int64_t first = first_query_of(a);
  const Range queries{first, first + a.q.shape[1]};
  const auto clear_those = [&](Range some) {
    const Range here = intersect(some, queries);
    if (!here.empty()) clear_queries(a, unit, {here.begin - first, here.end - first});
  };
  MatrixRegisters registers;
  registers.set_rows(kMatrixRows);
  Range all;  // documents that have keys here
  for_documents(a.documents, part, unit.sample, {0, part.count}, [&](Range keys, Range document) {
    backward_document(a, rule, unit, document, x);
    all = {keys.begin == 0 ? document.begin : all.begin, document.end};
  });
  clear_those({at_most(queries.begin, all.begin), all.begin});
  clear_those({all.end, at_least(queries.end, all.end)});
}

}  // namespace

void attention_backward(const AttentionBackward& a, const DropoutRule& rule, const KvHead& unit,
                        float* scratch) {
  if (a.q.type != DType::bf16) return isa_v4::kTable.attention_backward(a, rule, unit, scratch);
  backward_unit(a, rule, unit, scratch);
}

}  // namespace TESSERA_ISA
}  // namespace tessera::kernels
