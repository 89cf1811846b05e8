// Loops of attention: tiles of scores with a running softmax, forward and backward, and rotary
// positions.
#include <cmath>

#include "kernels/cpu/hot/dropout.hpp"
#include "kernels/cpu/hot/kernels.hpp"
#include "kernels/cpu/hot/tile.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

constexpr int kTileVecs = kTile / kLanes;
constexpr float kMasked = -__builtin_inff();

constexpr std::int64_t at_most(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
constexpr std::int64_t at_least(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

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

/// to (dim, 64) = x transposed; columns from `tokens` on are 0.
void pack_transposed(const float* packed, std::int64_t tokens, std::int64_t dim, std::int64_t ld,
                     float* to) {
  for (std::int64_t d0 = 0; d0 < dim; d0 += kLanes) {
    const std::int64_t d1 = at_most(dim, d0 + kLanes);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t d = d0; d < d1; ++d) to[d * kTile + t] = packed[t * ld + d];
    }
  }
  if (tokens == kTile) return;
  for (std::int64_t d = 0; d < dim; ++d) {
    for (std::int64_t t = tokens; t < kTile; ++t) to[d * kTile + t] = 0;
  }
}

void unpack(const float* from, std::int64_t ld, float factor, const HeadRows& to) {
  with_type(to.view->type, [&]<typename T>() {
    for (std::int64_t t = 0; t < to.tokens; ++t) {
      T* out = to.row<T>(t);
      for_vectors(
          to.dim, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
            store(out + i, load(from + t * ld + i, kLanes) * Vec(factor), count);
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
  std::int64_t sample, head, queries, keys;

  explicit operator bool() const { return dropout.p > 0; }
  void factors(std::int64_t t, std::int64_t s, std::int64_t n, float* out) const {
    const auto* samples = reinterpret_cast<const std::int64_t*>(dropout.samples.data);
    dropout_factors(rule, static_cast<std::uint64_t>(samples[sample]),
                    (head * queries + t) * keys + s, n, out);
  }
};

/// Masks one row of scores from column `visible` up to its last vector.
void mask_row(float* row, std::int64_t visible, int vecs) {
  for (std::int64_t s = at_least(visible, 0); s < vecs * kLanes; ++s) row[s] = kMasked;
}

// Running softmax of one query row over the tiles seen so far.
struct RowState {
  float* out;  // (Dp), scaled by e^-max
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

}  // namespace

void attention(const Attention& a, const DropoutRule& rule, const AttentionUnit& unit,
               float* scratch) {
  const std::int64_t dim = a.shape.head_dim, padded = padded_dim(a.shape);
  const std::int64_t queries = a.q.shape[1], keys = a.k.shape[1], history = keys - queries;
  const std::int64_t rows = unit.t.count();
  const std::int64_t kv_head = a.shape.kv_head_of(unit.head);
  const int vecs = static_cast<int>(padded / kLanes);
  float* q = scratch;
  float* out = q + kQueryChunk * padded;
  float* row_max = out + kQueryChunk * padded;
  float* row_sum = row_max + kQueryChunk;
  float* k_turned = row_sum + kQueryChunk;  // (Dp, 64)
  float* v = k_turned + kTile * padded;     // (64, Dp); holds the keys before they are transposed
  float* scores = v + kTile * padded;
  const TileDropout drop{a.dropout, rule, unit.sample, unit.head, queries, keys};

  pack({&a.q, unit.sample, unit.t.begin, rows, unit.head, dim}, a.shape.scale, q, padded);
  clear(out, rows * padded);
  for (std::int64_t i = 0; i < rows; ++i) row_max[i] = kMasked, row_sum[i] = 0;

  for (std::int64_t s = 0; s < history + unit.t.end; s += kTile) {
    const std::int64_t count = at_most(kTile, keys - s);
    pack({&a.k, unit.sample, s, count, kv_head, dim}, 1.0F, v, padded);
    pack_transposed(v, count, dim, padded, k_turned);
    pack({&a.v, unit.sample, s, count, kv_head, dim}, 1.0F, v, padded);
    for (std::int64_t i0 = 0; i0 < rows; i0 += kTile) {
      const std::int64_t i1 = at_most(rows, i0 + kTile);
      // Rows before the first that sees key s have nothing to do in this tile.
      const std::int64_t first = at_least(i0, s - history - unit.t.begin);
      for (std::int64_t i = first; i < i1; i += kBlockRows) {
        const std::int64_t n = at_most(kBlockRows, i1 - i);
        const auto visible = [&](std::int64_t row) {
          return at_most(count, history + unit.t.begin + row + 1 - s);
        };
        const std::int64_t depth = visible(i + n - 1);
        const int score_vecs = static_cast<int>(ceil_div(depth, kLanes));
        tile_product(n, score_vecs, dim, {q + i * padded, padded, 1}, {k_turned, kTile},
                     {scores, kTile}, Write::overwrite);
        for (std::int64_t j = 0; j < n; ++j) {
          float* row = scores + j * kTile;
          mask_row(row, visible(i + j), score_vecs);
          softmax_row(row, score_vecs, padded,
                      {out + (i + j) * padded, row_max[i + j], row_sum[i + j]});
          if (drop) drop_row(drop, unit.t.begin + i + j, s, depth, row);
        }
        tile_product(n, vecs, depth, {scores, kTile, 1}, {v, padded}, {out + i * padded, padded},
                     Write::add);
      }
    }
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    unpack(out + i * padded, padded, 1.0F / row_sum[i],
           {&a.out, unit.sample, unit.t.begin + i, 1, unit.head, dim});
  }
  if (a.lse.data == nullptr) return;
  float* lse = reinterpret_cast<float*>(a.lse.data) +
               (unit.sample * a.shape.heads + unit.head) * queries + unit.t.begin;
  for (std::int64_t i = 0; i < rows; ++i) lse[i] = row_max[i] + std::log(row_sum[i]);
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

/// One row of the tile: scores become probabilities (dropped ones 0), and `d` of them becomes d of
/// the scores.
void backward_row(float* p, float* d, std::int64_t visible, float lse, float delta,
                  const float* factors) {
  mask_row(p, visible, kTileVecs);
  for (int j = 0; j < kTileVecs; ++j) {
    const Vec probability = exp_of(load(p + j * kLanes, kLanes) - Vec(lse));
    Vec gradient = load(d + j * kLanes, kLanes);
    Vec used = probability;
    if (factors != nullptr) {
      const Vec factor = load(factors + j * kLanes, kLanes);
      gradient = gradient * factor;
      used = probability * factor;
    }
    store(d + j * kLanes, probability * (gradient - Vec(delta)), kLanes);
    store(p + j * kLanes, used, kLanes);
  }
}

/// What the backward of a kv head works in, Dp columns a row.
struct BackwardScratch {
  BackwardScratch(const AttentionShape& shape, std::int64_t heads, std::int64_t tokens,
                  float* scratch)
      : padded(padded_dim(shape)),
        delta(scratch),
        d_q(delta + round_up(heads * tokens, kLanes)),
        k(d_q + heads * tokens * padded),
        k_turned(k + kTile * padded),
        v_turned(k_turned + kTile * padded),
        d_k(v_turned + kTile * padded),
        d_v(d_k + kTile * padded),
        q(d_v + kTile * padded),
        d_out(q + kTile * padded),
        p(d_out + kTile * padded),
        d_p(p + kTile * kTile) {}

  std::int64_t padded;         // Dp
  float* delta;                // (heads, T)
  float* d_q;                  // (heads, T, Dp)
  float* k;                    // (64, Dp)
  float *k_turned, *v_turned;  // (Dp, 64)
  float *d_k, *d_v;            // (64, Dp), of the same keys
  float *q, *d_out;            // (64, Dp)
  float *p, *d_p;              // (64, 64): scores, then probabilities; their gradients
};

/// What the backward knows and makes of all queries of one head.
struct HeadBackward {
  const float *lse, *delta;  // (T)
  float* d_q;                // (T, Dp)
};

/// Takes keys and values [s, s + count) and clears their gradients.
void begin_keys(const AttentionBackward& a, const KvHead& unit, std::int64_t s, std::int64_t count,
                const BackwardScratch& x) {
  const std::int64_t dim = a.shape.head_dim;
  pack({&a.v, unit.sample, s, count, unit.kv_head, dim}, 1.0F, x.k, x.padded);
  pack_transposed(x.k, count, dim, x.padded, x.v_turned);
  pack({&a.k, unit.sample, s, count, unit.kv_head, dim}, 1.0F, x.k, x.padded);
  pack_transposed(x.k, count, dim, x.padded, x.k_turned);
  clear(x.d_k, kTile * x.padded);
  clear(x.d_v, kTile * x.padded);
}

/// Adds to d_q, d_k and d_v what queries [t, t + rows) and keys [s, s + count) of one head give
/// (Dao 2023, FlashAttention-2, the inner loop of algorithm 2).
void backward_tile(const AttentionBackward& a, const TileDropout& drop, const HeadBackward& head,
                   Range queries, Range keys, const BackwardScratch& x) {
  const std::int64_t dim = a.shape.head_dim, padded = x.padded;
  const std::int64_t t = queries.begin, rows = queries.count(), count = keys.count();
  const int vecs = static_cast<int>(padded / kLanes);
  const int key_vecs = static_cast<int>(ceil_div(count, kLanes));
  pack({&a.q, drop.sample, t, rows, drop.head, dim}, a.shape.scale, x.q, padded);
  pack({&a.d_out, drop.sample, t, rows, drop.head, dim}, 1.0F, x.d_out, padded);
  tile_product(rows, key_vecs, dim, {x.q, padded, 1}, {x.k_turned, kTile}, {x.p, kTile},
               Write::overwrite);
  tile_product(rows, key_vecs, dim, {x.d_out, padded, 1}, {x.v_turned, kTile}, {x.d_p, kTile},
               Write::overwrite);
  for (std::int64_t i = 0; i < rows; ++i) {
    float factors[kTile] = {};
    if (drop) drop.factors(t + i, keys.begin, count, factors);
    backward_row(x.p + i * kTile, x.d_p + i * kTile, at_most(count, t + i + 1 - keys.begin),
                 head.lse[t + i], head.delta[t + i], drop ? factors : nullptr);
  }
  tile_product(count, vecs, rows, {x.p, 1, kTile}, {x.d_out, padded}, {x.d_v, padded}, Write::add);
  tile_product(count, vecs, rows, {x.d_p, 1, kTile}, {x.q, padded}, {x.d_k, padded}, Write::add);
  tile_product(rows, vecs, count, {x.d_p, kTile, 1}, {x.k, padded}, {head.d_q + t * padded, padded},
               Write::add);
}

}  // namespace

void attention_backward(const AttentionBackward& a, const DropoutRule& rule, const KvHead& unit,
                        float* scratch) {
  const std::int64_t dim = a.shape.head_dim, tokens = a.q.shape[1], b = unit.sample;
  const Range heads = query_heads(a.shape, unit.kv_head);
  const BackwardScratch x(a.shape, heads.count(), tokens, scratch);
  clear(x.d_q, heads.count() * tokens * x.padded);
  for (std::int64_t h = heads.begin; h < heads.end; ++h) {
    row_products({&a.out, b, 0, tokens, h, dim}, {&a.d_out, b, 0, tokens, h, dim},
                 x.delta + (h - heads.begin) * tokens);
  }
  for (std::int64_t s = 0; s < tokens; s += kTile) {
    const std::int64_t count = at_most(kTile, tokens - s);
    begin_keys(a, unit, s, count, x);
    for (std::int64_t h = heads.begin; h < heads.end; ++h) {
      const std::int64_t before = (h - heads.begin) * tokens;  // rows of earlier heads
      const HeadBackward head{
          .lse = reinterpret_cast<const float*>(a.lse.data) + (b * a.shape.heads + h) * tokens,
          .delta = x.delta + before,
          .d_q = x.d_q + before * x.padded};
      for (std::int64_t t = s; t < tokens; t += kTile) {
        backward_tile(a, {a.dropout, rule, b, h, tokens, tokens}, head,
                      {t, at_most(t + kTile, tokens)}, {s, s + count}, x);
      }
    }
    unpack(x.d_k, x.padded, 1.0F, {&a.d_k, b, s, count, unit.kv_head, dim});
    unpack(x.d_v, x.padded, 1.0F, {&a.d_v, b, s, count, unit.kv_head, dim});
  }
  for (std::int64_t h = heads.begin; h < heads.end; ++h) {
    unpack(x.d_q + (h - heads.begin) * tokens * x.padded, x.padded, a.shape.scale,
           {&a.d_q, b, 0, tokens, h, dim});
  }
}

void rope(const Rope& a, const float* turns, Range rows) {
  const std::int64_t half = a.head_dim / 2, heads = columns_of(a.x) / a.head_dim;
  const std::int64_t tokens = a.x.shape[1];
  const Vec sign(a.direction == Rope::Direction::forward ? 1.0F : -1.0F);
  with_type(a.x.type, [&]<typename T>() {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      const float* cosine = turns + (r % tokens) * a.head_dim;
      const float* sine = cosine + half;
      for (std::int64_t h = 0; h < heads; ++h) {
        T* low = row_of<T>(a.x, r) + h * a.head_dim;
        T* high = low + half;
        for_vectors(
            half, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
              const Vec c = load(cosine + i, count), s = load(sine + i, count) * sign;
              const Vec x = load(low + i, count), y = load(high + i, count);
              store(low + i, x * c - y * s, count);
              store(high + i, fmadd(x, s, y * c), count);
            });
      }
    }
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
