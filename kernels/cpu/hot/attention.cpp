// Loops of attention: tiles of scores with a running softmax, forward and backward.
#include <cmath>

#include "kernels/cpu/hot/attention_parts.hpp"
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

static_assert(kBlockRows <= kMostBlockRows);

/// Masks one row of scores outside of columns `seen`.
void mask_row(float* row, Range seen, int vecs) {
  const std::int64_t columns = vecs * kLanes;
  for (std::int64_t s = 0; s < at_most(seen.begin, columns); ++s) row[s] = kMasked;
  for (std::int64_t s = at_least(seen.end, 0); s < columns; ++s) row[s] = kMasked;
}

float largest_of(const float* row, int vecs) {
  Vec best = load(row, kLanes);
  for (int j = 1; j < vecs; ++j) best = larger(load(row + j * kLanes, kLanes), best);
  return max_of(best);
}

/// Running softmax of query rows over the tiles seen so far.
struct RowStates {
  float* out;  // (rows, Ep), scaled by e^-max
  std::int64_t padded;
  float* max;  // (rows)
  float* sum;  // (rows, 16), parts of each
};

/// A row has seen a score of `max`: what it has added up becomes relative to that.
void rescale_row(float max, float* out, std::int64_t padded, float* sum, float& largest) {
  const Vec factor = exp_of(Vec(largest - max));
  for (std::int64_t i = 0; i < padded; i += kLanes)
    store(out + i, load(out + i, kLanes) * factor, kLanes);
  store(sum, load(sum, kLanes) * factor, kLanes);
  largest = max;
}

/// Scores of n rows, times `factor`, of which `largest` are each row's largest, become
/// probabilities relative to the new maxima. A row of which no key is visible yet has 0.
void softmax_rows(float* scores, std::int64_t n, int vecs, float factor, const float* largest,
                  const RowStates& rows) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (largest[i] > rows.max[i])
      rescale_row(largest[i], rows.out + i * rows.padded, rows.padded, rows.sum + i * kLanes,
                  rows.max[i]);
  }
  const Vec by(factor);
  for (std::int64_t i = 0; i < n; ++i) {
    const Vec less(rows.max[i] == kMasked ? 0.0F : -rows.max[i]);
    Vec sum = load(rows.sum + i * kLanes, kLanes);
    float* row = scores + i * kTile;
    for (int j = 0; j < vecs; ++j) {
      const Vec p = exp_of(fmadd(load(row + j * kLanes, kLanes), by, less));
      store(row + j * kLanes, p, kLanes);
      sum = sum + p;
    }
    store(rows.sum + i * kLanes, sum, kLanes);
  }
}

void drop_row(const TileDropout& drop, std::int64_t t, std::int64_t s, std::int64_t n, float* row) {
  float factors[kTile];
  drop.factors(t, s, n, factors);
  for (std::int64_t i = 0; i < n; ++i) row[i] *= factors[i];
}

/// What a forward unit works in: rows of Dp and Ep columns for its queries, and a tile of keys.
/// Rows of operands on the left have words of columns.
template <typename O>
struct ForwardScratch {
  using Word = typename O::Word;
  ForwardScratch(const AttentionShape& shape, float* scratch)
      : dims(padded_dims(shape)),
        q_ld(dims.q / O::kOfWord),
        q(take<Word>(scratch, kQueryChunk * q_ld)),
        out(take<float>(scratch, kQueryChunk * dims.v)),
        max(take<float>(scratch, kQueryChunk)),
        sum(take<float>(scratch, kQueryChunk * kLanes)),
        k_turned(take<Word>(scratch, kTile * q_ld)),
        v(take<Word>(scratch, kTile * dims.wider())),
        scores(take<float>(scratch, kBlockRows * kTile)),
        p(take<Word>(scratch, kBlockRows * kTile)) {}

  RowStates rows_from(std::int64_t i) const {
    return {out + i * dims.v, dims.v, max + i, sum + i * kLanes};
  }

  PaddedDims dims;  // Dp, Ep
  std::int64_t q_ld;
  Word* q;           // (256, Dp)
  float* out;        // (256, Ep)
  float *max, *sum;  // of each row, (256), (256, 16)
  Word* k_turned;    // (Dp, 64)
  Word* v;           // (64, Ep); holds the keys before they are transposed
  float* scores;     // of a block of rows, (6, 64)
  Word* p;           // what becomes of them
};

/// Keys of one document that are packed, and the queries that may see them.
struct ForwardTile {
  Sight sight;
  Range of_document, keys;   // all of the document's that are here, and those that are packed
  std::int64_t first_query;  // the token of row 0
};

/// What `n` rows from row i on, a block at most, get of a tile.
template <typename O>
void forward_rows(const Attention& a, const TileDropout& drop, const ForwardTile& tile,
                  std::int64_t i, std::int64_t n, const ForwardScratch<O>& x) {
  const std::int64_t query = tile.first_query + i;
  const auto seen_by = [&](std::int64_t row) {
    return tile.sight.keys_of(query + row, tile.of_document);
  };
  // Columns that any of the rows sees, from the vector of the first of them on.
  const std::int64_t left = at_least(seen_by(0).begin - tile.keys.begin, 0) / kLanes * kLanes;
  const std::int64_t right = at_most(tile.keys.count(), seen_by(n - 1).end - tile.keys.begin);
  const std::int64_t first_key = tile.keys.begin + left;
  const int vecs = static_cast<int>(ceil_div(right - left, kLanes));
  O::multiply(n, vecs, a.shape.head_dim, {x.q + i * x.q_ld, x.q_ld, 1}, {x.k_turned + left, kTile},
              {x.scores, kTile}, Write::overwrite);
  const float scale = O::scale_after(a.shape.scale), cap = a.shape.soft_cap,
              factor = cap > 0 ? 1.0F : scale;
  float largest[kBlockRows];
  for (std::int64_t j = 0; j < n; ++j) {
    float* row = x.scores + j * kTile;
    const Range seen = seen_by(j);
    if (cap > 0) cap_row(row, vecs, scale, cap, nullptr);
    mask_row(row, {seen.begin - first_key, seen.end - first_key}, vecs);
    largest[j] = largest_of(row, vecs) * factor;
  }
  softmax_rows(x.scores, n, vecs, factor, largest, x.rows_from(i));
  for (std::int64_t j = 0; drop && j < n; ++j)
    drop_row(drop, query + j, first_key, right - left, x.scores + j * kTile);
  O::multiply(
      n, static_cast<int>(x.dims.v / kLanes), right - left, O::rows_as_left(x.scores, n, vecs, x.p),
      {x.v + left / O::kOfWord * x.dims.v, x.dims.v}, {x.out + i * x.dims.v, x.dims.v}, Write::add);
}

/// What `rows` of a unit, whose queries are of one document, get of its keys. Tiles of keys begin
/// where the document does, so that its results do not depend on where it lies.
template <typename O>
void forward_document(const Attention& a, const TileDropout& drop, const AttentionUnit& unit,
                      const SampleKeys& of, Range rows, Range document,
                      const ForwardScratch<O>& x) {
  const std::int64_t dim = a.shape.head_dim, kv_head = a.shape.kv_head_of(unit.head);
  const Sight sight = sight_of(a.shape.mask, a.shape.window, drop.part.tokens);
  const Range of_document = drop.part.keys_of(document);
  if (of_document.empty()) return;
  const std::int64_t first_query = of.first_query + unit.t.begin;
  const Range seen =
      sight.keys_of(Range{first_query + rows.begin, first_query + rows.end}, of_document);
  const std::int64_t before = (seen.begin - of_document.begin) / kTile * kTile;
  for (std::int64_t s = of_document.begin + before; s < seen.end; s += kTile) {
    const ForwardTile tile{
        sight, of_document, {s, at_most(s + kTile, of_document.end)}, first_query};
    const std::int64_t count = tile.keys.count(), row = of.row(s);
    O::pack_left(rows_of_head(a.k, row, count, kv_head, dim), 1.0F, x.v, x.q_ld);
    O::turn(x.v, count, dim, x.q_ld, x.k_turned);
    O::pack_right(rows_of_head(a.v, row, count, kv_head, a.shape.values()), 1.0F, x.v, x.dims.v);
    const Range queries = sight.queries_of(tile.keys, document);
    const std::int64_t end = at_most(rows.end, queries.end - first_query);
    for (std::int64_t i = at_least(rows.begin, queries.begin - first_query); i < end;
         i += kBlockRows) {
      forward_rows(a, drop, tile, i, at_most(kBlockRows, end - i), x);
    }
  }
}

/// A head's rows lie further apart than hardware looks ahead: row t + kAhead is asked for while row
/// t is used. It may be behind the last one.
constexpr std::int64_t kAhead = 12, kCacheLine = 64;
template <typename T>
TESSERA_INLINE void look_ahead(const T* row, std::int64_t count, std::int64_t ld) {
  const auto* ahead = reinterpret_cast<const std::byte*>(row + kAhead * ld);
  for (std::int64_t i = 0; i < count * std::int64_t{sizeof(T)}; i += kCacheLine)
    __builtin_prefetch(ahead + i);
}

/// scores[t] = q . k[t] for a tile of keys.
void score_keys(const Block& k, const float* q, float* scores) {
  with_type(k.type, [&]<typename T>() {
    for (std::int64_t t = 0; t < k.rows; ++t) {
      const T* row = k.row<T>(t);
      look_ahead(row, k.columns, k.ld);
      Vec sum(0.0F);
      for_vectors(
          k.columns, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
            sum = fmadd(load(q + i, kLanes), load(row + i, count), sum);
          });
      scores[t] = sum_of(sum);
    }
  });
}

/// out += the sum of p[t] v[t] over a tile, in columns [first, first + kVecs vectors), of which
/// only the last may be less than whole.
template <int kVecs, typename T>
void add_columns(const Block& v, const float* p, std::int64_t first, float* out) {
  const auto count = [&](int j) { return at_most(kLanes, v.columns - first - j * kLanes); };
  Vec sums[kVecs];
  for (int j = 0; j < kVecs; ++j) sums[j] = load(out + first + j * kLanes, kLanes);
  for (std::int64_t t = 0; t < v.rows; ++t) {
    const T* row = v.row<T>(t) + first;
    look_ahead(row, kVecs * kLanes, v.ld);
    for (int j = 0; j < kVecs; ++j)
      sums[j] = fmadd(Vec(p[t]), load(row + j * kLanes, count(j)), sums[j]);
  }
  for (int j = 0; j < kVecs; ++j) store(out + first + j * kLanes, sums[j], kLanes);
}

void add_values(const Block& v, const float* p, float* out) {
  constexpr int kAtOnce = 4;
  with_type(v.type, [&]<typename T>() {
    std::int64_t i = 0;
    for (; i + kAtOnce * kLanes <= v.columns; i += kAtOnce * kLanes)
      add_columns<kAtOnce, T>(v, p, i, out);
    for (; i < v.columns; i += kLanes) add_columns<1, T>(v, p, i, out);
  });
}

/// A single query, as a sequence that is generated has them: keys and values are read once, from
/// where they are, and not packed for others.
void forward_query(const Attention& a, const AttentionUnit& unit, const ForwardScratch<Floats>& x) {
  const SampleKeys of(a, unit.sample);
  const KeyPart& part = of.part;
  const std::int64_t query = of.first_query, dim = a.shape.head_dim,
                     kv_head = a.shape.kv_head_of(unit.head);
  const auto* documents = reinterpret_cast<const std::int32_t*>(a.documents.data);
  const Range keys = part.keys_of(part.document_of(documents, unit.sample, query));
  const Range seen = sight_of(a.shape.mask, a.shape.window, part.tokens).keys_of(query, keys);
  for (std::int64_t s = seen.begin, count = 0; s < seen.end; s += count) {
    count = at_most(kTile - (s - keys.begin) % kTile, seen.end - s);
    const int vecs = static_cast<int>(ceil_div(count, kLanes));
    const std::int64_t row = of.row(s);
    score_keys(rows_of_head(a.k, row, count, kv_head, dim), x.q, x.scores);
    for (std::int64_t t = count; t < vecs * kLanes; ++t) x.scores[t] = 0;
    if (a.shape.soft_cap > 0) cap_row(x.scores, vecs, 1.0F, a.shape.soft_cap, nullptr);
    mask_row(x.scores, {0, count}, vecs);
    const float largest = largest_of(x.scores, vecs);
    softmax_rows(x.scores, 1, vecs, 1.0F, &largest, x.rows_from(0));
    add_values(rows_of_head(a.v, row, count, kv_head, a.shape.values()), x.scores, x.out);
  }
}

/// All queries of a unit, document by document.
template <typename O>
void forward_queries(const Attention& a, const DropoutRule& rule, const AttentionUnit& unit,
                     const ForwardScratch<O>& x) {
  const SampleKeys of(a, unit.sample);
  const TileDropout drop{a.dropout, rule, unit.sample, unit.head, of.part};
  const Range queries{of.first_query + unit.t.begin, of.first_query + unit.t.end};
  for_documents(a.documents, of.part, unit.sample, queries, [&](Range rows, Range document) {
    forward_document(a, drop, unit, of, rows, document, x);
  });
}

/// Outputs and lse of a unit, of which `each` makes what its queries get of all keys.
template <typename O, typename F>
void forward_unit(const Attention& a, const AttentionUnit& unit, float* scratch, F&& each) {
  const std::int64_t queries = a.q.shape[1], rows = unit.t.count();
  const ForwardScratch<O> x(a.shape, scratch);
  O::pack_left(head_of(a.q, unit.sample, unit.t.begin, rows, unit.head, a.shape.head_dim),
               O::scale_before(a.shape.scale), x.q, x.q_ld);
  clear(x.out, rows * x.dims.v);
  clear(x.sum, rows * kLanes);
  for (std::int64_t i = 0; i < rows; ++i) x.max[i] = kMasked;
  each(x);
  for (std::int64_t i = 0; i < rows; ++i) {
    const float sum = x.sum[i] = sum_of(load(x.sum + i * kLanes, kLanes));
    unpack(x.out + i * x.dims.v, x.dims.v, sum > 0 ? 1.0F / sum : 0.0F,
           head_of(a.out, unit.sample, unit.t.begin + i, 1, unit.head, a.shape.values()));
  }
  if (a.lse.data == nullptr) return;
  float* lse = reinterpret_cast<float*>(a.lse.data) +
               (unit.sample * a.shape.heads + unit.head) * queries + unit.t.begin;
  for (std::int64_t i = 0; i < rows; ++i) lse[i] = x.max[i] + std::log(x.sum[i]);
}

}  // namespace

void attention(const Attention& a, const DropoutRule& rule, const AttentionUnit& unit,
               float* scratch) {
  if (a.q.shape[1] == 1 && a.dropout.p == 0) {
    return forward_unit<Floats>(a, unit, scratch,
                                [&](const auto& x) { forward_query(a, unit, x); });
  }
  with_operands(a.q.type, [&]<typename O>() {
    forward_unit<O>(a, unit, scratch, [&](const auto& x) { forward_queries(a, rule, unit, x); });
  });
}

namespace {

/// What one row of a backward tile is about.
struct BackwardRow {
  Range seen;  // columns
  float factor, soft_cap, lse, delta;
  const float* factors;  // of dropout, or null
};

/// One row of the tile: scores become probabilities (dropped ones 0), and `d` of them becomes d of
/// the scores.
void backward_row(float* p, float* d, int vecs, const BackwardRow& row) {
  if (vecs <= 0) return;
  float slopes[kTile];
  if (row.soft_cap > 0) cap_row(p, vecs, row.factor, row.soft_cap, slopes);
  mask_row(p, row.seen, vecs);
  const Vec by(row.soft_cap > 0 ? 1.0F : row.factor), less(-row.lse);
  for (int j = 0; j < vecs; ++j) {
    const Vec probability = exp_of(fmadd(load(p + j * kLanes, kLanes), by, less));
    Vec gradient = load(d + j * kLanes, kLanes);
    Vec used = probability;
    if (row.factors != nullptr) {
      const Vec factor = load(row.factors + j * kLanes, kLanes);
      gradient = gradient * factor;
      used = probability * factor;
    }
    Vec score = probability * (gradient - Vec(row.delta));
    if (row.soft_cap > 0) score = score * load(slopes + j * kLanes, kLanes);
    store(d + j * kLanes, score, kLanes);
    store(p + j * kLanes, used, kLanes);
  }
}

/// What the backward of a kv head works in, Dp or Ep columns a row. Rows of operands on the left
/// have words of columns.
template <typename O>
struct BackwardScratch {
  using Word = typename O::Word;
  BackwardScratch(const AttentionShape& shape, std::int64_t heads, std::int64_t tokens,
                  float* scratch)
      : dims(padded_dims(shape)),
        q_ld(dims.q / O::kOfWord),
        v_ld(dims.v / O::kOfWord),
        delta(take<float>(scratch, round_up(heads * tokens, kLanes))),
        d_q(take<float>(scratch, heads * tokens * dims.q)),
        k(take<Word>(scratch, kTile * dims.wider())),
        k_turned(take<Word>(scratch, kTile * dims.q)),
        v_turned(take<Word>(scratch, kTile * dims.v)),
        d_k(take<float>(scratch, kTile * dims.q)),
        d_v(take<float>(scratch, kTile * dims.v)),
        q(take<Word>(scratch, kTile * dims.q)),
        d_out(take<Word>(scratch, kTile * dims.v)),
        q_right(O::kOfWord == 1 ? q : q + kTile * q_ld),
        d_out_right(O::kOfWord == 1 ? d_out : d_out + kTile * v_ld),
        p(take<float>(scratch, kTile * kTile)),
        d_p(take<float>(scratch, kTile * kTile)),
        words(take<Word>(scratch, kTile * kTile / 2)) {}

  PaddedDims dims;              // Dp, Ep
  std::int64_t q_ld, v_ld;      // words of their columns
  float* delta;                 // (heads, T)
  float* d_q;                   // (heads, T, Dp)
  Word* k;                      // (64, Dp), on the right; holds others before they are transposed
  Word *k_turned, *v_turned;    // (Dp, 64), (Ep, 64)
  float *d_k, *d_v;             // (64, Dp), (64, Ep), of the same keys
  Word *q, *d_out;              // (64, Dp), (64, Ep), on the left
  Word *q_right, *d_out_right;  // and on the right, where these are others
  float *p, *d_p;               // (64, 64): scores, then probabilities; their gradients
  Word* words;                  // what becomes of them
};

/// What the backward knows and makes of all queries of one head, which are T from token `first` on.
struct HeadBackward {
  std::int64_t first;
  const float *lse, *delta;  // (T)
  float* d_q;                // (T, Dp)
};

/// Takes keys and values and clears their gradients.
template <typename O>
void begin_keys(const AttentionBackward& a, const KvHead& unit, Range keys,
                const BackwardScratch<O>& x) {
  const std::int64_t dim = a.shape.head_dim, values = a.shape.values(), s = keys.begin,
                     count = keys.count();
  const Block v = head_of(a.v, unit.sample, s, count, unit.kv_head, values),
              k = head_of(a.k, unit.sample, s, count, unit.kv_head, dim);
  O::pack_left(v, 1.0F, x.k, x.v_ld);
  O::turn(x.k, count, values, x.v_ld, x.v_turned);
  if constexpr (O::kOfWord == 1) {  // both sides are alike
    O::pack_right(k, 1.0F, x.k, x.dims.q);
    O::turn(x.k, count, dim, x.q_ld, x.k_turned);
  } else {
    O::pack_left(k, 1.0F, x.k, x.q_ld);
    O::turn(x.k, count, dim, x.q_ld, x.k_turned);
    O::pack_right(k, 1.0F, x.k, x.dims.q);
  }
  clear(x.d_k, count * x.dims.q);
  clear(x.d_v, count * x.dims.v);
}

/// A tile of queries and keys, of one document, and which of them see each other. Rows are those of
/// queries, columns those of keys, counted from the first of the tile.
struct BackwardTile {
  Sight sight;
  Range document, queries, keys;

  std::int64_t rows() const { return queries.count(); }
  std::int64_t columns() const { return keys.count(); }
  /// Columns that any of some rows sees, from the vector of the first of them on.
  Range seen_by(Range of) const {
    const Range seen =
        sight.keys_of(Range{queries.begin + of.begin, queries.begin + of.end}, document);
    return {at_least(seen.begin - keys.begin, 0) / kLanes * kLanes,
            at_most(columns(), seen.end - keys.begin)};
  }
  /// Rows that see any of some columns, from the pair of the first of them on.
  Range that_see(Range of) const {
    const Range see = sight.queries_of(Range{keys.begin + of.begin, keys.begin + of.end}, document);
    return {at_least(see.begin - queries.begin, 0) / 2 * 2,
            at_most(rows(), see.end - queries.begin)};
  }
};

/// f(range) for a tile's rows or columns, as many at once as a block of a product has rows.
template <typename F>
TESSERA_INLINE void for_blocks(std::int64_t count, F&& f) {
  for (std::int64_t i = 0; i < count; i += kBlockRows) f(Range{i, at_most(count, i + kBlockRows)});
}

/// Probabilities and gradients of scores, in x.p and x.d_p; 0 of what is not seen.
template <typename O>
void backward_scores(const AttentionBackward& a, const TileDropout& drop, const HeadBackward& head,
                     const BackwardTile& tile, const BackwardScratch<O>& x) {
  using Word = typename O::Word;
  const std::int64_t t = tile.queries.begin - head.first;
  const int whole = static_cast<int>(ceil_div(tile.columns(), kLanes));
  const auto vecs_of = [](Range seen) {
    return static_cast<int>(ceil_div(at_least(seen.end - seen.begin, 0), kLanes));
  };
  const auto multiply = [&](std::int64_t depth, const Word* left, std::int64_t ld,
                            const Word* turned, float* to) {
    for_blocks(tile.rows(), [&](Range rows) {
      const Range seen = tile.seen_by(rows);
      if (vecs_of(seen) < whole) clear(to + rows.begin * kTile, rows.count() * kTile);
      O::multiply(rows.count(), vecs_of(seen), depth, {left + rows.begin * ld, ld, 1},
                  {turned + seen.begin, kTile}, {to + rows.begin * kTile + seen.begin, kTile},
                  Write::overwrite);
    });
  };
  multiply(a.shape.head_dim, x.q, x.q_ld, x.k_turned, x.p);
  multiply(a.shape.values(), x.d_out, x.v_ld, x.v_turned, x.d_p);
  for_blocks(tile.rows(), [&](Range rows) {
    const Range seen = tile.seen_by(rows);
    for (std::int64_t i = rows.begin; i < rows.end; ++i) {
      const std::int64_t query = tile.queries.begin + i, first = tile.keys.begin + seen.begin;
      float factors[kTile];
      if (drop && vecs_of(seen) > 0) {
        clear(factors, kTile);
        drop.factors(query, first, seen.count(), factors);
      }
      const Range of_row = tile.sight.keys_of(query, tile.document);
      const std::int64_t place = i * kTile + seen.begin;
      backward_row(x.p + place, x.d_p + place, vecs_of(seen),
                   {.seen = {of_row.begin - first, at_most(seen.count(), of_row.end - first)},
                    .factor = O::scale_after(a.shape.scale),
                    .soft_cap = a.shape.soft_cap,
                    .lse = head.lse[t + i] == kMasked ? 0 : head.lse[t + i],  // of no key at all
                    .delta = head.delta[t + i],
                    .factors = drop ? factors : nullptr});
    }
  });
}

/// Adds to d_q, d_k and d_v what a tile gives (Dao 2023, FlashAttention-2, the inner loop of
/// algorithm 2).
template <typename O>
void backward_tile(const AttentionBackward& a, const TileDropout& drop, const HeadBackward& head,
                   const BackwardTile& tile, const BackwardScratch<O>& x) {
  using Word = typename O::Word;
  const std::int64_t t = tile.queries.begin - head.first, rows = tile.rows();
  const int vecs = static_cast<int>(x.dims.q / kLanes),
            value_vecs = static_cast<int>(x.dims.v / kLanes),
            key_vecs = static_cast<int>(ceil_div(tile.columns(), kLanes));
  const Block q = head_of(a.q, drop.sample, t, rows, drop.head, a.shape.head_dim),
              d_out = head_of(a.d_out, drop.sample, t, rows, drop.head, a.shape.values());
  const float scale = O::scale_before(a.shape.scale);
  if (O::kOfWord > 1) {
    O::pack_left(q, scale, x.q, x.q_ld);
    O::pack_left(d_out, 1.0F, x.d_out, x.v_ld);
  }
  O::pack_right(q, scale, x.q_right, x.dims.q);
  O::pack_right(d_out, 1.0F, x.d_out_right, x.dims.v);
  backward_scores(a, drop, head, tile, x);
  // Of each column, with the rows of `right`.
  const auto add_columns = [&](const TileA<Word>& left, const Word* right, std::int64_t ld, int n,
                               float* to) {
    for_blocks(tile.columns(), [&](Range columns) {
      const Range see = tile.that_see(columns);
      const std::int64_t first = see.begin / O::kOfWord;
      O::multiply(columns.count(), n, see.end - see.begin,
                  {left.data + columns.begin * left.row + first * left.step, left.row, left.step},
                  {right + first * ld, ld}, {to + columns.begin * ld, ld}, Write::add);
    });
  };
  add_columns(O::columns_as_left(x.p, rows, key_vecs, x.words), x.d_out_right, x.dims.v, value_vecs,
              x.d_v);
  const TileA<Word> by_row = O::rows_as_left(x.d_p, rows, key_vecs, x.words);
  for_blocks(rows, [&](Range of) {
    const Range seen = tile.seen_by(of);
    const std::int64_t first = seen.begin / O::kOfWord;
    O::multiply(of.count(), vecs, seen.end - seen.begin,
                {by_row.data + of.begin * by_row.row + first, by_row.row, 1},
                {x.k + first * x.dims.q, x.dims.q},
                {head.d_q + (t + of.begin) * x.dims.q, x.dims.q}, Write::add);
  });
  add_columns(O::columns_as_left(x.d_p, rows, key_vecs, x.words), x.q_right, x.dims.q, vecs, x.d_k);
}

/// Gradients that one document's queries and keys give, in tiles that begin where it does, or where
/// the queries do.
template <typename O>
void backward_document(const AttentionBackward& a, const DropoutRule& rule, const KvHead& unit,
                       Range document, const BackwardScratch<O>& x) {
  const KeyPart part = part_of(a);
  const std::int64_t count = a.q.shape[1], first = first_query_of(a), b = unit.sample;
  const Range heads = query_heads(a.shape, unit.kv_head), of_document = part.keys_of(document);
  const Sight sight = sight_of(a.shape.mask, a.shape.window, part.tokens);
  for (std::int64_t s = of_document.begin; s < of_document.end; s += kTile) {
    const Range keys{s, at_most(s + kTile, of_document.end)};
    begin_keys(a, unit, keys, x);
    const Range see = sight.queries_of(keys, document);
    const std::int64_t before = (see.begin - document.begin) / kTile * kTile;
    const Range queries = intersect({document.begin + before, see.end}, {first, first + count});
    for (std::int64_t h = heads.begin; h < heads.end; ++h) {
      const std::int64_t earlier = (h - heads.begin) * count;  // rows of earlier heads
      const HeadBackward head{
          .first = first,
          .lse = reinterpret_cast<const float*>(a.lse.data) + (b * a.shape.heads + h) * count,
          .delta = x.delta + earlier,
          .d_q = x.d_q + earlier * x.dims.q};
      for (std::int64_t t = queries.begin; t < queries.end; t += kTile) {
        const std::int64_t end = at_most(at_most(t + kTile, document.end), first + count);
        backward_tile(a, {a.dropout, rule, b, h, part}, head, {sight, document, {t, end}, keys}, x);
      }
    }
    unpack(x.d_k, x.dims.q, O::scale_after(a.shape.scale),
           head_of(a.d_k, b, s, keys.count(), unit.kv_head, a.shape.head_dim), a.write);
    unpack(x.d_v, x.dims.v, 1.0F,
           head_of(a.d_v, b, s, keys.count(), unit.kv_head, a.shape.values()), a.write);
  }
}

template <typename O>
void backward_unit(const AttentionBackward& a, const DropoutRule& rule, const KvHead& unit,
                   float* scratch) {
  const std::int64_t values = a.shape.values(), tokens = a.q.shape[1], b = unit.sample;
  const Range heads = query_heads(a.shape, unit.kv_head);
  const BackwardScratch<O> x(a.shape, heads.count(), tokens, scratch);
  clear(x.d_q, heads.count() * tokens * x.dims.q);
  for (std::int64_t h = heads.begin; h < heads.end; ++h) {
    row_products(head_of(a.out, b, 0, tokens, h, values), head_of(a.d_out, b, 0, tokens, h, values),
                 x.delta + (h - heads.begin) * tokens);
  }
  const KeyPart part = part_of(a);
  for_documents(a.documents, part, b, {0, part.count},
                [&](Range, Range document) { backward_document(a, rule, unit, document, x); });
  for (std::int64_t h = heads.begin; h < heads.end; ++h) {
    unpack(x.d_q + (h - heads.begin) * tokens * x.dims.q, x.dims.q, a.shape.scale,
           head_of(a.d_q, b, 0, tokens, h, a.shape.head_dim));
  }
}

}  // namespace

void attention_backward(const AttentionBackward& a, const DropoutRule& rule, const KvHead& unit,
                        float* scratch) {
  with_operands(a.q.type, [&]<typename O>() { backward_unit<O>(a, rule, unit, scratch); });
}

void merge_attention(const MergeAttention& a, Range rows) {
  const std::int64_t tokens = a.out.shape[1], columns = a.out.shape[2] / a.heads;
  auto* const lse = reinterpret_cast<float*>(a.lse.data);
  const auto* const x_lse = reinterpret_cast<const float*>(a.x_lse.data);
  with_type(a.x.type, [&]<typename T>() {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      const T* x = row_of<T>(a.x, r);
      float* out = row_of<float>(a.out, r);
      for (std::int64_t h = 0; h < a.heads; ++h, x += columns, out += columns) {
        const std::int64_t at = (r / tokens * a.heads + h) * tokens + r % tokens;
        const MergedLse merged = merged_lse(lse[at], x_lse[at]);
        for_vectors(
            columns, [&](std::int64_t c, std::int64_t n) __attribute__((always_inline)) {
              store(out + c,
                    fmadd(Vec(merged.of_second), load(x + c, n),
                          Vec(merged.of_first) * load(out + c, n)),
                    n);
            });
        lse[at] = merged.lse;
      }
    }
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
