// Attention to bf16 with a processor's instructions for matrices: 32 queries meet up to 256 keys at
// a time. Their scores become probabilities, rounded to bf16, where they are, and so are the left
// operand of the product with the values. Other types, and single queries, are as with AVX-512.
#include "kernels/cpu/hot/attention_matrices.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels {
namespace isa_v4 {
extern const HotKernels kTable;
}

namespace TESSERA_ISA {
namespace {

static_assert(kMatrixRows == kSide && kMatrixRows == Matrices::kBlockRows);
static_assert(kMatrixKeys % kTile == 0);

/// What a forward unit works in: queries of one document, and keys that are packed.
struct ForwardScratch {
  ForwardScratch(const AttentionShape& shape, float* scratch)
      : dims(padded_dims(shape)),
        words(matrix_depths(shape).q / 2),
        q(take<Pair>(scratch, kQueryChunk * words)),
        out(take<float>(scratch, kQueryChunk * dims.v)),
        max(take<float>(scratch, kQueryChunk)),
        sum(take<float>(scratch, kQueryChunk * kLanes)),
        k_data(take<Pair>(scratch, kMatrixKeys * words)),
        v_data(take<Pair>(scratch, kMatrixKeys / 2 * dims.v)),
        scores(take<float>(scratch, kMatrixRows * kMatrixScores)) {}

  Right k() const { return {k_data, words * kLanes}; }            // (D, 256)
  Right v() const { return {v_data, kMatrixKeys / 2 * kLanes}; }  // (256, E)

  PaddedDims dims;
  std::int64_t words;  // of a row of q
  Pair* q;             // (256, words)
  float* out;          // (256, Ep), relative to 2^-max
  float *max, *sum;    // of each row, (256), (256, 16)
  Pair *k_data, *v_data;
  float* scores;  // of a block of rows, (32, 256)
};

/// Keys of one document that are packed, and the queries that may see them.
struct ForwardTile {
  Sight sight;
  Range of_document, keys;   // all of the document's that are here, and those that are packed
  std::int64_t first_query;  // the token of row 0

  /// Columns that a row sees, and that some rows see.
  Range seen_by(std::int64_t row) const { return seen_by(Range{row, row + 1}); }
  Range seen_by(Range rows) const {
    const Range seen =
        sight.keys_of(Range{first_query + rows.begin, first_query + rows.end}, of_document);
    return {seen.begin - keys.begin, seen.end - keys.begin};
  }
};

/// Masks a row of scores in `columns`, which are whole vectors, outside of those that it sees.
void mask_columns(float* row, Range columns, Range seen) {
  const __m512 masked = _mm512_set1_ps(kMasked);
  for (std::int64_t c = columns.begin; c < seen.begin && c < columns.end; c += kLanes)
    _mm512_mask_storeu_ps(row + c, static_cast<__mmask16>(first_of(seen.begin - c)), masked);
  const std::int64_t end = at_least(seen.end, columns.begin);
  for (std::int64_t c = end / kLanes * kLanes; c < columns.end; c += kLanes)
    _mm512_mask_storeu_ps(row + c, static_cast<__mmask16>(~first_of(end - c)), masked);
}

/// A row has seen a larger score than before: what it has added up becomes less by `factor`.
void rescale_row(float factor, float* out, std::int64_t columns, float* sum) {
  const Vec by(factor);
  for (std::int64_t i = 0; i < columns; i += kLanes)
    store(out + i, load(out + i, kLanes) * by, kLanes);
  store(sum, load(sum, kLanes) * by, kLanes);
}

/// Takes the largest of sixteen rows' scores, times `factor`, into their maxima; `less` becomes
/// what is added to each row's scores then.
void take_maxima(const ForwardScratch& x, std::int64_t i, const float* scores, Range columns,
                 float factor, float (&less)[kLanes]) {
  Vec best[kLanes];
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; ++r)
    best[r] = load(scores + r * kMatrixScores + columns.begin, kLanes);
  for (std::int64_t c = columns.begin + kLanes; c < columns.end; c += kLanes) {
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r)
      best[r] = larger(load(scores + r * kMatrixScores + c, kLanes), best[r]);
  }
  const Vec before = load(x.max + i, kLanes),
            now = larger(maxima_of_rows(best) * Vec(factor), before);
  store(x.max + i, now, kLanes);
  store(less, select(now > Vec(kMasked), Vec(0.0F) - now, Vec(0.0F)), kLanes);
  auto grown = static_cast<unsigned>(
      _mm512_cmp_ps_mask(now.part[0], before.part[0], _CMP_GT_OQ) &
      _mm512_cmp_ps_mask(before.part[0], _mm512_set1_ps(kMasked), _CMP_GT_OQ));
  if (grown == 0) return;
  float factors[kLanes];
  store(factors, power_of_two_at(before - now), kLanes);
  for (; grown != 0; grown &= grown - 1) {
    const int r = __builtin_ctz(grown);
    rescale_row(factors[r], x.out + (i + r) * x.dims.v, x.dims.v, x.sum + (i + r) * kLanes);
  }
}

/// A row of scores becomes pairs of bf16, where it is: 2^(factor x + less), times what dropout
/// makes of them; these, as they were before, are added to `sum`.
template <bool kDrop>
TESSERA_INLINE void exponentials(float* row, Range columns, float factor, float less,
                                 const float* drop, float* sum) {
  auto* pairs = reinterpret_cast<Pair*>(row);
  const Vec by(factor), add(less);
  Vec even(0.0F), odd(0.0F);
  for (std::int64_t c = columns.begin; c < columns.end; c += kSide) {
    Vec first = power_of_two_at(fmadd(load(row + c, kLanes), by, add)),
        second = power_of_two_at(fmadd(load(row + c + kLanes, kLanes), by, add));
    even = even + first, odd = odd + second;
    if constexpr (kDrop)
      first = first * load(drop + c, kLanes), second = second * load(drop + c + kLanes, kLanes);
    _mm512_storeu_si512(pairs + c / 2, rounded(first, second));
  }
  store(sum, load(sum, kLanes) + (even + odd), kLanes);
}

/// Scores of a block of rows become probabilities relative to their maxima.
void softmax_rows(const Attention& a, const TileDropout& drop, const ForwardTile& tile, Range rows,
                  Range columns, const ForwardScratch& x) {
  const float cap = a.shape.soft_cap, factor = cap > 0 ? kLog2E : a.shape.scale * kLog2E;
  const std::int64_t i = rows.begin, n = rows.count();
  for (std::int64_t r = 0; r < n; ++r) {
    float* row = x.scores + r * kMatrixScores;
    if (cap > 0)
      cap_row(row + columns.begin, static_cast<int>(columns.count() / kLanes), a.shape.scale, cap,
              nullptr);
    const Range seen = tile.seen_by(i + r);
    if (seen.begin > columns.begin || seen.end < columns.end) mask_columns(row, columns, seen);
  }
  for (std::int64_t r0 = 0; r0 < n; r0 += kLanes) {
    float less[kLanes];
    take_maxima(x, i + r0, x.scores + r0 * kMatrixScores, columns, factor, less);
    for (std::int64_t r = r0; r < at_most(n, r0 + kLanes); ++r) {
      float* row = x.scores + r * kMatrixScores;
      float* sum = x.sum + (i + r) * kLanes;
      if (!drop) {
        exponentials<false>(row, columns, factor, less[r - r0], nullptr, sum);
        continue;
      }
      float factors[kMatrixKeys] = {};
      drop.factors(tile.first_query + i + r, tile.keys.begin + columns.begin,
                   at_most(columns.end, tile.keys.count()) - columns.begin,
                   factors + columns.begin);
      exponentials<true>(row, columns, factor, less[r - r0], factors, sum);
    }
  }
}

/// What n rows from row i on, 32 at most, get of a tile.
void forward_rows(const Attention& a, const TileDropout& drop, const ForwardTile& tile,
                  std::int64_t i, std::int64_t n, const ForwardScratch& x) {
  // Columns that any of the rows sees, in whole matrices.
  const Range seen = tile.seen_by(Range{i, i + n});
  const std::int64_t left = at_least(seen.begin, 0) / kSide * kSide,
                     right = at_most(seen.end, tile.keys.count()), above = ceil_div(n, kLanes);
  if (right <= left) return;
  const Range columns{left, round_up(right, kSide)};
  multiply_blocks(above, ceil_div(right - left, kLanes), x.words,
                  Matrices::rows_as_left(x.q + i * x.words, x.words), x.k().from(left, 0),
                  {x.scores + left, kMatrixScores}, Write::overwrite);
  softmax_rows(a, drop, tile, {i, i + n}, columns, x);
  const auto* p = reinterpret_cast<const Pair*>(x.scores) + left / 2;
  // There are sums from the tile before on.
  const Write write = seen.begin >= 0 ? Write::overwrite : Write::add;
  multiply_blocks(above, x.dims.v / kLanes, columns.count() / 2,
                  Matrices::rows_as_left(p, kMatrixScores), x.v().from(0, left),
                  {x.out + i * x.dims.v, x.dims.v}, write);
}

/// Packs the keys and values of a tile, whose pages have whole pieces of 64, as queries come to
/// them; the next piece is asked for, to be near when it is needed.
class KeyPieces {
 public:
  KeyPieces(const Attention& a, const SampleKeys& of, std::int64_t kv_head, Range keys)
      : a_(a), of_(of), kv_head_(kv_head), keys_(keys) {}

  /// Those before column `end`.
  void pack(std::int64_t end, const ForwardScratch& x) {
    for (; packed_ < at_most(end, keys_.count()); packed_ += kTile) {
      const Block k = piece(a_.k, packed_, a_.shape.head_dim);
      pack_turned(k, round_up(k.rows, kLanes), x.k_data + packed_ * x.words);
      pack_pairs(piece(a_.v, packed_, a_.shape.values()), x.v().group,
                 x.v_data + packed_ / 2 * kLanes);
      if (packed_ + kTile >= keys_.count()) continue;
      ask_for(piece(a_.k, packed_ + kTile, a_.shape.head_dim));
      ask_for(piece(a_.v, packed_ + kTile, a_.shape.values()));
    }
  }

 private:
  Block piece(const View& view, std::int64_t at, std::int64_t dim) const {
    return rows_of_head(view, of_.row(keys_.begin + at), at_most(kTile, keys_.count() - at),
                        kv_head_, dim);
  }

  const Attention& a_;
  const SampleKeys& of_;
  std::int64_t kv_head_;
  Range keys_;
  std::int64_t packed_ = 0;
};

/// Takes queries of a unit, which have seen nothing, as those from row i on.
void begin_rows(const Attention& a, const AttentionUnit& unit, Range rows, std::int64_t i,
                const ForwardScratch& x) {
  const std::int64_t all = round_up(rows.count(), kLanes);
  pack_rows(head_of(a.q, unit.sample, unit.t.begin + rows.begin, rows.count(), unit.head,
                    a.shape.head_dim),
            all, x.words, x.q + i * x.words);
  clear(x.sum + i * kLanes, all * kLanes);
  for (std::int64_t r = 0; r < all; r += kLanes) store(x.max + i + r, Vec(kMasked), kLanes);
}

/// Writes outputs and lse of rows of a unit, which are those from row i on.
void finish_rows(const Attention& a, const AttentionUnit& unit, Range rows, std::int64_t i,
                 const ForwardScratch& x) {
  const Block out = head_of(a.out, unit.sample, unit.t.begin + rows.begin, rows.count(), unit.head,
                            a.shape.values());
  float* lse = a.lse.data == nullptr
                   ? nullptr
                   : reinterpret_cast<float*>(a.lse.data) +
                         (unit.sample * a.shape.heads + unit.head) * a.q.shape[1] + unit.t.begin +
                         rows.begin;
  for (std::int64_t r0 = 0; r0 < rows.count(); r0 += kLanes) {
    Vec parts[kLanes];
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) parts[r] = load(x.sum + (i + r0 + r) * kLanes, kLanes);
    float sums[kLanes];
    store(sums, sums_of_rows(parts), kLanes);
    for (std::int64_t r = r0; r < at_most(r0 + kLanes, rows.count()); ++r) {
      const float sum = sums[r - r0];
      auto* to = out.row<bf16>(r);
      if (sum == 0) {  // of no key at all
        write_zeros(out.columns, to);
      } else {
        write_rounded(x.out + (i + r) * x.dims.v, 1.0F / sum, out.columns, to);
      }
      if (lse != nullptr) lse[r] = std::fma(x.max[i + r], kLn2, std::log(sum));
    }
  }
}

/// What `rows` of a unit, whose queries are of one document, get of its keys. Tiles of keys begin
/// where the document does, so that its results do not depend on where it lies.
void forward_document(const Attention& a, const TileDropout& drop, const AttentionUnit& unit,
                      const SampleKeys& of, Range rows, Range document, const ForwardScratch& x) {
  const Sight sight = sight_of(a.shape.mask, a.shape.window, drop.part.tokens);
  const Range of_document = drop.part.keys_of(document);
  const std::int64_t first_query = of.first_query + unit.t.begin + rows.begin;
  const Range seen =
      of_document.empty()
          ? Range{}
          : sight.keys_of(Range{first_query, first_query + rows.count()}, of_document);
  const std::int64_t start =
      of_document.begin + (seen.begin - of_document.begin) / kMatrixKeys * kMatrixKeys;
  // There is a pass without keys where rows see none.
  for (std::int64_t s = start; s == start || s < seen.end; s += kMatrixKeys) {
    const ForwardTile tile{
        sight, of_document, {s, at_most(s + kMatrixKeys, seen.end)}, first_query};
    KeyPieces pieces(a, of, a.shape.kv_head_of(unit.head), tile.keys);
    for (std::int64_t i = 0; i < rows.count(); i += kMatrixRows) {
      const Range some{i, at_most(i + kMatrixRows, rows.count())};
      const Range of_unit{rows.begin + some.begin, rows.begin + some.end};
      if (s == start) begin_rows(a, unit, of_unit, i, x);
      const Range here = tile.seen_by(some);
      if (here.begin < kMatrixKeys) pieces.pack(here.end, x);
      forward_rows(a, drop, tile, i, some.count(), x);
      const bool last = here.empty() ? s == start : here.end > 0 && here.end <= kMatrixKeys;
      if (last) finish_rows(a, unit, of_unit, i, x);
    }
  }
}

/// All queries of a unit, document by document.
void forward_unit(const Attention& a, const DropoutRule& rule, const AttentionUnit& unit,
                  float* scratch) {
  const ForwardScratch x(a.shape, scratch);
  const SampleKeys of(a, unit.sample);
  const TileDropout drop{a.dropout, rule, unit.sample, unit.head, of.part};
  const Range queries{of.first_query + unit.t.begin, of.first_query + unit.t.end};
  MatrixRegisters registers;
  registers.set_rows(kMatrixRows);
  const std::int64_t end = for_documents(
      a.documents, of.part, unit.sample, queries,
      [&](Range rows, Range document) { forward_document(a, drop, unit, of, rows, document, x); });
  const Range padding{end, queries.count()};
  if (padding.empty()) return;
  begin_rows(a, unit, padding, 0, x);
  finish_rows(a, unit, padding, 0, x);
}

}  // namespace

void attention(const Attention& a, const DropoutRule& rule, const AttentionUnit& unit,
               float* scratch) {
  const bool single = a.q.shape[1] == 1 && a.dropout.p == 0;
  if (single || a.q.type != DType::bf16) return isa_v4::kTable.attention(a, rule, unit, scratch);
  forward_unit(a, rule, unit, scratch);
}

}  // namespace TESSERA_ISA
}  // namespace tessera::kernels
