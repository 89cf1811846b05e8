// Matrix products of bf16 with a processor's instructions for matrices: the left operand lies as it
// is or is packed, tiles of the right one are packed by the thread that needs them, as many at once
// as fill half of its second-level cache, and rows meet them all, one block of registers after
// another. Where x is few rows, rows of the weight are the left operand, read once from where they
// lie, and x the right one. Products of other types are those of AVX-512.
#include "kernels/cpu/hot/matrices.hpp"

#include "kernels/cpu/hot/coded_rows.hpp"
#include "kernels/cpu/hot/kernels.hpp"
#include "kernels/cpu/hot/product_parts.hpp"

namespace tessera::kernels {
namespace isa_v4 {
extern const HotKernels kTable;
}

namespace TESSERA_ISA {
namespace {

static_assert(kPackedRows % Matrices::kBlockRows == 0);

/// Tiles of 1.1 MiB together.
constexpr std::int64_t kRightWords = 4608;

/// Words of a row of the left operand that is packed as it lies.
std::int64_t row_words(Range depth) { return Matrices::words_of(depth.count()); }

/// The left operand's rows from `row` on.
Matrices::Left left_of(const Product& p, const ProductPart& part, std::int64_t row) {
  if (part.left == nullptr) {
    const auto* own = row_of<const bf16>(p.a, row) + part.depth.begin;
    return Matrices::rows_as_left(reinterpret_cast<const Pair*>(own), p.a.ld / Matrices::kOfWord);
  }
  const std::int64_t words = row_words(part.depth);
  const auto* own =
      reinterpret_cast<const Pair*>(part.left) + (row - part.block_rows.begin) * words;
  return p.a_stored == Stored::turned ? Matrices::packed_as_left(own, part.depth.count())
                                      : Matrices::rows_as_left(own, words);
}

void multiply_tile(const Product& p, const ProductPart& part, Range rows, Range columns,
                   const Pair* right) {
  alignas(64) float own[Matrices::kBlockRows * kTile];
  const TileC sums = sums_of(part, rows, columns, own);
  // What is overwritten is written as fast without, where it has room in the caches.
  if (part.last && p.write == Write::add) ask_for_result(p, rows, columns);
  Matrices::multiply(rows.count(), static_cast<int>(ceil_div(columns.count(), kLanes)),
                     part.depth.count(), left_of(p, part, rows.begin), right, sums,
                     part.depth.begin == 0 ? Write::overwrite : Write::add);
  if (part.last) finish(p, sums, rows, columns);
}

/// Whether rows of the weight are multiplied as they lie.
bool lies_as_left(const FewRows& p) {
  return !p.codes && p.x.shape[1] % (Matrices::kOfWord * kLanes) == 0 &&
         p.weight.ld % Matrices::kOfWord == 0;
}

/// A row of codes in whole blocks as elements. The processor's own rounding, to which numbers below
/// the normal ones are 0, as they are to products, is that of others: scales of 8-bit codes
/// are normal (common/quantize), and what 4-bit ones stand for is rounded already.
template <BlockType kType>
TESSERA_PAIR_INSTRUCTIONS void decode_row(const CodeRows& w, bf16* to) {
  constexpr std::int64_t kBytes = kLanes * kBitsOf<kType> / 8, kAhead = 4096;
  const std::byte* codes = w.codes;
  for (std::int64_t b = 0; b < w.columns / w.block; ++b) {
    const BlockValues<kType, std::conditional_t<kBitsOf<kType> == 4, bf16, float>> values(
        w.scales[b]);
    std::int64_t i = 0;
    for (; i + 2 * kLanes <= w.block; i += 2 * kLanes, codes += 2 * kBytes, to += 2 * kLanes) {
      __builtin_prefetch(codes + kAhead);
      const auto both = (__m512i)_mm512_cvtne2ps_pbh((__m512)values.at(codes + kBytes).part[0],
                                                     (__m512)values.at(codes).part[0]);
      _mm512_storeu_si512(to, both);
    }
    for (; i < w.block; i += kLanes, codes += kBytes, to += kLanes)
      store(to, values.at(codes), kLanes);
  }
}

/// A row of the weight as elements.
void copy_row(const FewRows& p, std::int64_t row, bf16* to) {
  const std::int64_t k = p.x.shape[1];
  if (!p.codes) {
    std::memcpy(to, row_of<const bf16>(p.weight, row), static_cast<std::size_t>(k) * sizeof(bf16));
    return;
  }
  with_block_type(p.codes.format.type, [&]<BlockType kType>() {
    if constexpr (kType != BlockType::sign) {
      has_whole_blocks(p) ? decode_row<kType>(code_rows(p, row), to)
                          : decode<kType, bf16>(p, {row * k, (row + 1) * k}, to);
    }
  });
}

/// Rows of the weight as a left operand, if need be in `room`, where what is behind them is 0.
Matrices::Left rows_of_weight(const FewRows& p, Range rows, std::byte* room) {
  if (lies_as_left(p)) {
    const auto* own = row_of<const bf16>(p.weight, rows.begin);
    return Matrices::rows_as_left(reinterpret_cast<const Pair*>(own),
                                  p.weight.ld / Matrices::kOfWord);
  }
  const std::int64_t k = p.x.shape[1], words = Matrices::words_of(k),
                     ld = words * Matrices::kOfWord;
  auto* to = reinterpret_cast<bf16*>(room);
  for (std::int64_t r = 0; r < rows.count(); ++r) {
    copy_row(p, rows.begin + r, to + r * ld);
    std::fill(to + r * ld + k, to + (r + 1) * ld, bf16{});
  }
  return Matrices::rows_as_left(reinterpret_cast<const Pair*>(to), words);
}

/// y = sums (columns, tokens), transposed, + bias.
template <typename Y>
void finish_few_rows(const FewRows& p, TileC sums, Range columns) {
  for (std::int64_t c = 0; c < columns.count(); c += kLanes) {
    const std::int64_t count = at_most(kLanes, columns.count() - c);
    const Vec added = bias_of(p, columns.begin + c, count);
    for (std::int64_t t = 0; t < p.x.shape[0]; t += kLanes) {
      alignas(64) float turned[kLanes * kLanes];
      turn_square(sums.data + c * sums.ld + t, sums.ld * std::int64_t{sizeof(float)}, turned,
                  kLanes);
      for (std::int64_t i = 0; i < at_most(kLanes, p.x.shape[0] - t); ++i)
        store(row_of<Y>(p.y, t + i) + columns.begin + c, load(turned + i * kLanes, kLanes) + added,
              count);
    }
  }
}

}  // namespace

ProductForm product_form(DType type) {
  if (type != DType::bf16) return isa_v4::kTable.product_form(type);
  return {.word = Matrices::kOfWord,
          .whole_depth = Matrices::kOfWord * kLanes,
          .block_rows = Matrices::kBlockRows,
          .depth_words = 1536,
          .cut_words = 512,
          .right_words = kRightWords,
          .packing = 45,
          .fetching = 2};
}

void pack_left(const Product& p, const ProductPart& part) {
  if (p.a.type != DType::bf16) return isa_v4::kTable.pack_left(p, part);
  const std::int64_t words = row_words(part.depth);
  auto* to = reinterpret_cast<Pair*>(part.left) + (part.rows.begin - part.block_rows.begin) * words;
  if (p.a_stored == Stored::turned) {
    Matrices::pack_turned_left(block_of(p.a, part.depth, part.rows), to);
  } else {
    Matrices::pack_left(block_of(p.a, part.rows, part.depth), 1.0F, to, words);
  }
}

void multiply_part(const Product& p, const ProductPart& part) {
  if (p.a.type != DType::bf16) return isa_v4::kTable.multiply_part(p, part);
  const std::int64_t words = Matrices::words_of(part.depth.count()),
                     at_once = std::max(std::int64_t{1}, kRightWords / words) * kTile;
  auto* right = reinterpret_cast<Pair*>(part.right);
  MatrixRegisters registers;
  for (std::int64_t c = part.columns.begin; c < part.columns.end; c += at_once) {
    const Range columns{c, at_most(c + at_once, part.columns.end)};
    const Block tiles = tile_of(p, columns, part.depth);
    p.b_stored == Stored::straight ? Matrices::pack_tiles(tiles, right)
                                   : Matrices::pack_turned_tiles(tiles, right);
    for (std::int64_t r = part.rows.begin; r < part.rows.end; r += Matrices::kBlockRows) {
      const Range rows{r, at_most(r + Matrices::kBlockRows, part.rows.end)};
      registers.set_rows(rows.count());
      for (std::int64_t t = c; t < columns.end; t += kTile)
        multiply_tile(p, part, rows, {t, at_most(t + kTile, columns.end)}, right + (t - c) * words);
    }
  }
  settle_stores();
}

FewRowsScratch few_rows_scratch(const FewRows& p) {
  if (p.x.type != DType::bf16) return isa_v4::kTable.few_rows_scratch(p);
  const std::int64_t bytes = Matrices::words_of(p.x.shape[1]) * std::int64_t{sizeof(Pair)};
  return {.packed = round_up(p.x.shape[0], kLanes) * bytes,
          .weight = lies_as_left(p) ? 0 : Matrices::kBlockRows * bytes};
}

void pack_few_rows(const FewRows& p) {
  if (p.x.type != DType::bf16) return isa_v4::kTable.pack_few_rows(p);
  Matrices::pack_turned_tiles(block_of(p.x, {0, p.x.shape[0]}, {0, p.x.shape[1]}),
                              reinterpret_cast<Pair*>(p.packed));
}

void multiply_few_rows(const FewRows& p, Range columns, std::byte* weight) {
  if (p.x.type != DType::bf16) return isa_v4::kTable.multiply_few_rows(p, columns, weight);
  constexpr std::int64_t kRows = Matrices::kBlockRows;
  const int vecs = static_cast<int>(ceil_div(p.x.shape[0], kLanes));
  alignas(64) float own[kRows * kMostFewRows];
  MatrixRegisters registers;
  for (std::int64_t c = columns.begin; c < columns.end; c += kRows) {
    const Range rows{c, at_most(c + kRows, columns.end)};
    registers.set_rows(rows.count());
    const TileC sums{own, kMostFewRows};
    Matrices::multiply(rows.count(), vecs, p.x.shape[1], rows_of_weight(p, rows, weight),
                       reinterpret_cast<const Pair*>(p.packed), sums, Write::overwrite);
    with_type(p.y.type, [&]<typename Y>() { finish_few_rows<Y>(p, sums, rows); });
  }
}

}  // namespace TESSERA_ISA
}  // namespace tessera::kernels
