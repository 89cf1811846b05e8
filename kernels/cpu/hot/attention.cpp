// Loops of attention: tiles of scores with a running softmax, forward and backward.
#include <cmath>

#include "kernels/cpu/hot/dropout.hpp"
#include "kernels/cpu/hot/kernels.hpp"
#include "kernels/cpu/hot/tile.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

constexpr float kMasked = -__builtin_inff();

/// Of an Attention or its backward.
template <typename Operation>
KeyPart part_of(const Operation& a) {
  return {a.first_key, a.k.shape[1], sequence_of(a)};
}

/// The keys of one sample: which of k's it is, which tokens, and how many the first query is behind
/// the first of them.
struct SampleKeys {
  SampleKeys(const Attention& a, std::int64_t b)
      : sample(b), part(part_of(a)), first_query(first_query_of(a)) {
    const auto* cached = reinterpret_cast<const CachedSample*>(a.cached.data);
    if (cached == nullptr) return;
    sample = cached[b].slot, part = kernels::part_of(cached[b]), first_query = cached[b].before;
  }
  std::int64_t sample;
  KeyPart part;
  std::int64_t first_query;
};

/// One head's columns of a (B, T, heads D) tensor, `tokens` rows from `first` on.
struct HeadRows {
  const View* view;
  std::int64_t sample, first, tokens, head, dim;

  template <typename T>
  T* row(std::int64_t t) const {
    return row_of<T>(*view, sample * view->shape[1] + first + t) + head * dim;
  }
};

/// to (tokens, ld) = factor x; columns from dim to ld are 0.
void pack(const HeadRows& x, float factor, float* to, std::int64_t ld) {
  with_type(x.view->type, [&]<typename T>() {
    for (std::int64_t t = 0; t < x.tokens; ++t) {
      const T* from = x.row<T>(t);
      for_vectors(
          x.dim, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
            store(to + t * ld + i, load(from + i, count) * Vec(factor), kLanes);
          });
    }
  });
}

/// to (dim, 64) = x transposed; columns from `tokens` up to a whole vector are 0.
void pack_transposed(const float* packed, std::int64_t tokens, std::int64_t dim, std::int64_t ld,
                     float* to) {
  for (std::int64_t d0 = 0; d0 < dim; d0 += kLanes) {
    const std::int64_t d1 = at_most(dim, d0 + kLanes);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t d = d0; d < d1; ++d) to[d * kTile + t] = packed[t * ld + d];
    }
  }
  const std::int64_t whole = round_up(tokens, kLanes);
  if (tokens == whole) return;
  for (std::int64_t d = 0; d < dim; ++d) {
    for (std::int64_t t = tokens; t < whole; ++t) to[d * kTile + t] = 0;
  }
}

void unpack(const float* from, std::int64_t ld, float factor, const HeadRows& to,
            Write write = Write::overwrite) {
  with_type(to.view->type, [&]<typename T>() {
    for (std::int64_t t = 0; t < to.tokens; ++t) {
      T* out = to.row<T>(t);
      for_vectors(
          to.dim, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
            Vec x = load(from + t * ld + i, kLanes) * Vec(factor);
            if (write == Write::add) x = x + load(out + i, count);
            store(out + i, x, count);
          });
    }
  });
}

void clear(float* x, std::int64_t n) {
  std::memset(x, 0, static_cast<std::size_t>(n) * sizeof(float));
}

/// Dropout of a tile of probabilities: one row's factors.
struct TileDropout {
  const Dropout& dropout;
  const DropoutRule& rule;
  std::int64_t sample, head;
  KeyPart part;

  explicit operator bool() const { return dropout.p > 0; }
  void factors(std::int64_t query, std::int64_t s, std::int64_t n, float* out) const {
    const auto* samples = reinterpret_cast<const std::int64_t*>(dropout.samples.data);
    dropout_factors(rule, static_cast<std::uint64_t>(samples[sample]), part.pair(head, query, s), n,
                    out);
  }
};

/// Masks one row of scores outside of columns `seen`.
void mask_row(float* row, Range seen, int vecs) {
  const std::int64_t columns = vecs * kLanes;
  for (std::int64_t s = 0; s < at_most(seen.begin, columns); ++s) row[s] = kMasked;
  for (std::int64_t s = at_least(seen.end, 0); s < columns; ++s) row[s] = kMasked;
}

/// One row of scores x becomes cap tanh(x / cap); `slopes` its derivatives, unless it is null.
void cap_row(float* row, int vecs, float cap, float* slopes) {
  const Vec inverse(1.0F / cap);
  for (int j = 0; j < vecs; ++j) {
    const Vec t = tanh_of(load(row + j * kLanes, kLanes) * inverse);
    store(row + j * kLanes, Vec(cap) * t, kLanes);
    if (slopes != nullptr) store(slopes + j * kLanes, tanh_slope(t), kLanes);
  }
}

// Running softmax of one query row over the tiles seen so far.
struct RowState {
  float* out;  // (Ep), scaled by e^-max
  float& max;
  float& sum;
};

/// Scores of one row become probabilities relative to the new maximum; earlier output is rescaled.
void softmax_row(float* row, int vecs, std::int64_t padded, RowState state) {
  Vec best = load(row, kLanes);
  for (int j = 1; j < vecs; ++j) best = max(load(row + j * kLanes, kLanes), best);
  const float tile_max = max_of(best);
  const float new_max = tile_max > state.max ? tile_max : state.max;
  if (new_max == kMasked) {  // no visible key yet
    clear(row, vecs * kLanes);
    return;
  }
  Vec sum(0.0F);
  for (int j = 0; j < vecs; ++j) {
    const Vec p = exp_of(load(row + j * kLanes, kLanes) - Vec(new_max));
    store(row + j * kLanes, p, kLanes);
    sum = sum + p;
  }
  if (new_max != state.max) {
    const Vec factor = exp_of(Vec(state.max - new_max));
    for (std::int64_t i = 0; i < padded; i += kLanes) {
      store(state.out + i, load(state.out + i, kLanes) * factor, kLanes);
    }
    float lane[kLanes];
    store(lane, factor, kLanes);
    state.sum *= lane[0];
    state.max = new_max;
  }
  state.sum += sum_of(sum);
}

void drop_row(const TileDropout& drop, std::int64_t t, std::int64_t s, std::int64_t n, float* row) {
  float factors[kTile];
  drop.factors(t, s, n, factors);
  for (std::int64_t i = 0; i < n; ++i) row[i] *= factors[i];
}

/// What a forward unit works in: rows of Dp and Ep columns for its queries, and a tile of keys.
struct ForwardScratch {
  ForwardScratch(const AttentionShape& shape, float* scratch)
      : dims(padded_dims(shape)),
        q(scratch),
        out(q + kQueryChunk * dims.q),
        max(out + kQueryChunk * dims.v),
        sum(max + kQueryChunk),
        k_turned(sum + kQueryChunk),
        v(k_turned + kTile * dims.q),
        scores(v + kTile * dims.wider()) {}

  PaddedDims dims;   // Dp, Ep
  float *q, *out;    // (256, Dp), (256, Ep)
  float *max, *sum;  // of each row
  float* k_turned;   // (Dp, 64)
  float* v;          // (64, Ep); holds the keys before they are transposed
  float* scores;
};

/// Keys of one document that are packed, and the queries that may see them.
struct ForwardTile {
  Sight sight;
  Range of_document, keys;   // all of the document's that are here, and those that are packed
  std::int64_t first_query;  // the token of row 0
};

/// What `n` rows from row i on, a block at most, get of a tile.
void forward_rows(const Attention& a, const TileDropout& drop, const ForwardTile& tile,
                  std::int64_t i, std::int64_t n, const ForwardScratch& x) {
  const std::int64_t query = tile.first_query + i;
  const auto seen_by = [&](std::int64_t row) {
    return tile.sight.keys_of(query + row, tile.of_document);
  };
  // Columns that any of the rows sees, from the vector of the first of them on.
  const std::int64_t left = at_least(seen_by(0).begin - tile.keys.begin, 0) / kLanes * kLanes;
  const std::int64_t right = at_most(tile.keys.count(), seen_by(n - 1).end - tile.keys.begin);
  const std::int64_t first_key = tile.keys.begin + left;
  const int vecs = static_cast<int>(ceil_div(right - left, kLanes));
  tile_product(n, vecs, a.shape.head_dim, {x.q + i * x.dims.q, x.dims.q, 1},
               {x.k_turned + left, kTile}, {x.scores, kTile}, Write::overwrite);
  for (std::int64_t j = 0; j < n; ++j) {
    float* row = x.scores + j * kTile;
    const Range seen = seen_by(j);
    if (a.shape.soft_cap > 0) cap_row(row, vecs, a.shape.soft_cap, nullptr);
    mask_row(row, {seen.begin - first_key, seen.end - first_key}, vecs);
    softmax_row(row, vecs, x.dims.v, {x.out + (i + j) * x.dims.v, x.max[i + j], x.sum[i + j]});
    if (drop) drop_row(drop, query + j, first_key, right - left, row);
  }
  tile_product(n, static_cast<int>(x.dims.v / kLanes), right - left, {x.scores, kTile, 1},
               {x.v + left * x.dims.v, x.dims.v}, {x.out + i * x.dims.v, x.dims.v}, Write::add);
}

/// What `rows` of a unit, whose queries are of one document, get of its keys. Tiles of keys begin
/// where the document does, so that its results do not depend on where it lies.
void forward_document(const Attention& a, const TileDropout& drop, const AttentionUnit& unit,
                      const SampleKeys& of, Range rows, Range document, const ForwardScratch& x) {
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
    const std::int64_t count = tile.keys.count();
    pack({&a.k, of.sample, s, count, kv_head, dim}, 1.0F, x.v, x.dims.q);
    pack_transposed(x.v, count, dim, x.dims.q, x.k_turned);
    pack({&a.v, of.sample, s, count, kv_head, a.shape.values()}, 1.0F, x.v, x.dims.v);
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
void score_keys(const HeadRows& k, const float* q, float* scores) {
  with_type(k.view->type, [&]<typename T>() {
    for (std::int64_t t = 0; t < k.tokens; ++t) {
      const T* row = k.row<T>(t);
      look_ahead(row, k.dim, k.view->ld);
      Vec sum(0.0F);
      for_vectors(
          k.dim, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
            sum = fmadd(load(q + i, kLanes), load(row + i, count), sum);
          });
      scores[t] = sum_of(sum);
    }
  });
}

/// out += the sum of p[t] v[t] over a tile, in columns [first, first + kVecs vectors), of which
/// only the last may be less than whole.
template <int kVecs, typename T>
void add_columns(const HeadRows& v, const float* p, std::int64_t first, float* out) {
  const auto count = [&](int j) { return at_most(kLanes, v.dim - first - j * kLanes); };
  Vec sums[kVecs];
  for (int j = 0; j < kVecs; ++j) sums[j] = load(out + first + j * kLanes, kLanes);
  for (std::int64_t t = 0; t < v.tokens; ++t) {
    const T* row = v.row<T>(t) + first;
    look_ahead(row, kVecs * kLanes, v.view->ld);
    for (int j = 0; j < kVecs; ++j)
      sums[j] = fmadd(Vec(p[t]), load(row + j * kLanes, count(j)), sums[j]);
  }
  for (int j = 0; j < kVecs; ++j) store(out + first + j * kLanes, sums[j], kLanes);
}

void add_values(const HeadRows& v, const float* p, float* out) {
  constexpr int kAtOnce = 4;
  with_type(v.view->type, [&]<typename T>() {
    std::int64_t i = 0;
    for (; i + kAtOnce * kLanes <= v.dim; i += kAtOnce * kLanes)
      add_columns<kAtOnce, T>(v, p, i, out);
    for (; i < v.dim; i += kLanes) add_columns<1, T>(v, p, i, out);
  });
}

/// A single query, as a sequence that is generated has them: keys and values are read once, from
/// where they are, and not packed for others.
void forward_query(const Attention& a, const AttentionUnit& unit, const ForwardScratch& x) {
  const SampleKeys of(a, unit.sample);
  const KeyPart& part = of.part;
  const std::int64_t query = of.first_query, dim = a.shape.head_dim,
                     kv_head = a.shape.kv_head_of(unit.head);
  const auto* documents = reinterpret_cast<const std::int32_t*>(a.documents.data);
  const Range document = part.document_of(documents, unit.sample, query);
  const Range seen =
      sight_of(a.shape.mask, a.shape.window, part.tokens).keys_of(query, part.keys_of(document));
  for (std::int64_t s = seen.begin; s < seen.end; s += kTile) {
    const std::int64_t count = at_most(kTile, seen.end - s);
    const int vecs = static_cast<int>(ceil_div(count, kLanes));
    score_keys({&a.k, of.sample, s, count, kv_head, dim}, x.q, x.scores);
    for (std::int64_t t = count; t < vecs * kLanes; ++t) x.scores[t] = 0;
    if (a.shape.soft_cap > 0) cap_row(x.scores, vecs, a.shape.soft_cap, nullptr);
    mask_row(x.scores, {0, count}, vecs);
    softmax_row(x.scores, vecs, x.dims.v, {x.out, x.max[0], x.sum[0]});
    add_values({&a.v, of.sample, s, count, kv_head, a.shape.values()}, x.scores, x.out);
  }
}

/// All queries of a unit, document by document.
void forward_queries(const Attention& a, const DropoutRule& rule, const AttentionUnit& unit,
                     const ForwardScratch& x) {
  const SampleKeys of(a, unit.sample);
  const std::int64_t rows = unit.t.count(), first_query = of.first_query + unit.t.begin;
  const TileDropout drop{a.dropout, rule, unit.sample, unit.head, of.part};
  const auto* documents = reinterpret_cast<const std::int32_t*>(a.documents.data);
  for (std::int64_t i = 0; i < rows;) {
    const Range document = drop.part.document_of(documents, unit.sample, first_query + i);
    const std::int64_t end = at_most(rows, document.end - first_query);
    if (end <= i) return;  // padding
    forward_document(a, drop, unit, of, {i, end}, document, x);
    i = end;
  }
}

}  // namespace

void attention(const Attention& a, const DropoutRule& rule, const AttentionUnit& unit,
               float* scratch) {
  const std::int64_t queries = a.q.shape[1], rows = unit.t.count();
  const ForwardScratch x(a.shape, scratch);
  pack({&a.q, unit.sample, unit.t.begin, rows, unit.head, a.shape.head_dim}, a.shape.scale, x.q,
       x.dims.q);
  clear(x.out, rows * x.dims.v);
  for (std::int64_t i = 0; i < rows; ++i) x.max[i] = kMasked, x.sum[i] = 0;

  if (queries == 1 && a.dropout.p == 0) {
    forward_query(a, unit, x);
  } else {
    forward_queries(a, rule, unit, x);
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    unpack(x.out + i * x.dims.v, x.dims.v, x.sum[i] > 0 ? 1.0F / x.sum[i] : 0.0F,
           {&a.out, unit.sample, unit.t.begin + i, 1, unit.head, a.shape.values()});
  }
  if (a.lse.data == nullptr) return;
  float* lse = reinterpret_cast<float*>(a.lse.data) +
               (unit.sample * a.shape.heads + unit.head) * queries + unit.t.begin;
  for (std::int64_t i = 0; i < rows; ++i) lse[i] = x.max[i] + std::log(x.sum[i]);
}

namespace {

/// delta[t] = out . d_out, which equals the sum over keys of P dP (FlashAttention, equation 4).
void row_products(const HeadRows& out, const HeadRows& d_out, float* delta) {
  with_type(out.view->type, [&]<typename T>() {
    for (std::int64_t t = 0; t < out.tokens; ++t) {
      const T* x = out.row<T>(t);
      const T* y = d_out.row<T>(t);
      Vec sum(0.0F);
      for_vectors(
          out.dim, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
            sum = fmadd(load(x + i, count), load(y + i, count), sum);
          });
      delta[t] = sum_of(sum);
    }
  });
}

/// What one row of a backward tile is about.
struct BackwardRow {
  Range seen;  // columns
  float soft_cap, lse, delta;
  const float* factors;  // of dropout, or null
};

/// One row of the tile: scores become probabilities (dropped ones 0), and `d` of them becomes d of
/// the scores.
void backward_row(float* p, float* d, int vecs, const BackwardRow& row) {
  float slopes[kTile];
  if (row.soft_cap > 0) cap_row(p, vecs, row.soft_cap, slopes);
  mask_row(p, row.seen, vecs);
  for (int j = 0; j < vecs; ++j) {
    const Vec probability = exp_of(load(p + j * kLanes, kLanes) - Vec(row.lse));
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

/// What the backward of a kv head works in, Dp or Ep columns a row.
struct BackwardScratch {
  BackwardScratch(const AttentionShape& shape, std::int64_t heads, std::int64_t tokens,
                  float* scratch)
      : dims(padded_dims(shape)),
        delta(scratch),
        d_q(delta + round_up(heads * tokens, kLanes)),
        k(d_q + heads * tokens * dims.q),
        k_turned(k + kTile * dims.wider()),
        v_turned(k_turned + kTile * dims.q),
        d_k(v_turned + kTile * dims.v),
        d_v(d_k + kTile * dims.q),
        q(d_v + kTile * dims.v),
        d_out(q + kTile * dims.q),
        p(d_out + kTile * dims.v),
        d_p(p + kTile * kTile) {}

  PaddedDims dims;             // Dp, Ep
  float* delta;                // (heads, T)
  float* d_q;                  // (heads, T, Dp)
  float* k;                    // (64, Dp); holds the values before they are transposed
  float *k_turned, *v_turned;  // (Dp, 64), (Ep, 64)
  float *d_k, *d_v;            // (64, Dp), (64, Ep), of the same keys
  float *q, *d_out;            // (64, Dp), (64, Ep)
  float *p, *d_p;              // (64, 64): scores, then probabilities; their gradients
};

/// What the backward knows and makes of all queries of one head, which are T from token `first` on.
struct HeadBackward {
  std::int64_t first;
  const float *lse, *delta;  // (T)
  float* d_q;                // (T, Dp)
};

/// Takes keys and values and clears their gradients.
void begin_keys(const AttentionBackward& a, const KvHead& unit, Range keys,
                const BackwardScratch& x) {
  const std::int64_t dim = a.shape.head_dim, values = a.shape.values(), s = keys.begin,
                     count = keys.count();
  pack({&a.v, unit.sample, s, count, unit.kv_head, values}, 1.0F, x.k, x.dims.v);
  pack_transposed(x.k, count, values, x.dims.v, x.v_turned);
  pack({&a.k, unit.sample, s, count, unit.kv_head, dim}, 1.0F, x.k, x.dims.q);
  pack_transposed(x.k, count, dim, x.dims.q, x.k_turned);
  clear(x.d_k, count * x.dims.q);
  clear(x.d_v, count * x.dims.v);
}

/// Adds to d_q, d_k and d_v what the queries of these tokens and keys, of one head and document,
/// give (Dao 2023, FlashAttention-2, the inner loop of algorithm 2).
void backward_tile(const AttentionBackward& a, const TileDropout& drop, const HeadBackward& head,
                   Range document, Range queries, Range keys, const BackwardScratch& x) {
  const Sight sight = sight_of(a.shape.mask, a.shape.window, drop.part.tokens);
  const std::int64_t dim = a.shape.head_dim, values = a.shape.values();
  const auto [q_ld, v_ld] = x.dims;
  const std::int64_t t = queries.begin - head.first, rows = queries.count(), count = keys.count();
  const int vecs = static_cast<int>(q_ld / kLanes), value_vecs = static_cast<int>(v_ld / kLanes);
  const int key_vecs = static_cast<int>(ceil_div(count, kLanes));
  pack({&a.q, drop.sample, t, rows, drop.head, dim}, a.shape.scale, x.q, q_ld);
  pack({&a.d_out, drop.sample, t, rows, drop.head, values}, 1.0F, x.d_out, v_ld);
  tile_product(rows, key_vecs, dim, {x.q, q_ld, 1}, {x.k_turned, kTile}, {x.p, kTile},
               Write::overwrite);
  tile_product(rows, key_vecs, values, {x.d_out, v_ld, 1}, {x.v_turned, kTile}, {x.d_p, kTile},
               Write::overwrite);
  for (std::int64_t i = 0; i < rows; ++i) {
    float factors[kTile] = {};
    if (drop) drop.factors(queries.begin + i, keys.begin, count, factors);
    const Range seen = sight.keys_of(queries.begin + i, document);
    backward_row(x.p + i * kTile, x.d_p + i * kTile, key_vecs,
                 {.seen = {seen.begin - keys.begin, at_most(count, seen.end - keys.begin)},
                  .soft_cap = a.shape.soft_cap,
                  .lse = head.lse[t + i] == kMasked ? 0 : head.lse[t + i],  // of no key at all
                  .delta = head.delta[t + i],
                  .factors = drop ? factors : nullptr});
  }
  tile_product(count, value_vecs, rows, {x.p, 1, kTile}, {x.d_out, v_ld}, {x.d_v, v_ld},
               Write::add);
  tile_product(count, vecs, rows, {x.d_p, 1, kTile}, {x.q, q_ld}, {x.d_k, q_ld}, Write::add);
  tile_product(rows, vecs, count, {x.d_p, kTile, 1}, {x.k, q_ld}, {head.d_q + t * q_ld, q_ld},
               Write::add);
}

/// Gradients that one document's queries and keys give, in tiles that begin where it does, or where
/// the queries do.
void backward_document(const AttentionBackward& a, const DropoutRule& rule, const KvHead& unit,
                       Range document, const BackwardScratch& x) {
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
        backward_tile(a, {a.dropout, rule, b, h, part}, head, document, {t, end}, keys, x);
      }
    }
    unpack(x.d_k, x.dims.q, 1.0F, {&a.d_k, b, s, keys.count(), unit.kv_head, a.shape.head_dim},
           a.write);
    unpack(x.d_v, x.dims.v, 1.0F, {&a.d_v, b, s, keys.count(), unit.kv_head, a.shape.values()},
           a.write);
  }
}

}  // namespace

void attention_backward(const AttentionBackward& a, const DropoutRule& rule, const KvHead& unit,
                        float* scratch) {
  const std::int64_t values = a.shape.values(), tokens = a.q.shape[1], b = unit.sample;
  const Range heads = query_heads(a.shape, unit.kv_head);
  const BackwardScratch x(a.shape, heads.count(), tokens, scratch);
  clear(x.d_q, heads.count() * tokens * x.dims.q);
  for (std::int64_t h = heads.begin; h < heads.end; ++h) {
    row_products({&a.out, b, 0, tokens, h, values}, {&a.d_out, b, 0, tokens, h, values},
                 x.delta + (h - heads.begin) * tokens);
  }
  const auto* documents = reinterpret_cast<const std::int32_t*>(a.documents.data);
  const KeyPart part = part_of(a);
  for (std::int64_t t = 0; t < part.count;) {
    const Range document = part.document_of(documents, b, t);
    backward_document(a, rule, unit, document, x);
    t = document.end;
  }
  for (std::int64_t h = heads.begin; h < heads.end; ++h) {
    unpack(x.d_q + (h - heads.begin) * tokens * x.dims.q, x.dims.q, a.shape.scale,
           {&a.d_q, b, 0, tokens, h, a.shape.head_dim});
  }
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
