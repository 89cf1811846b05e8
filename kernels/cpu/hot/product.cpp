// Matrix products: tiles of the right operand are packed by the thread that needs them, just before
// all its rows are multiplied by them in blocks of registers.
#include "kernels/cpu/hot/product.hpp"

#include "kernels/cpu/hot/kernels.hpp"
#include "kernels/cpu/hot/product_parts.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

static_assert(kPackedRows % kBlockRows == 0);

constexpr std::int64_t kWordsAtOnce = 64;  // of the depth, packed by way of the first-level cache

/// Asks for a block of memory, some lines at a time, while others are multiplied.
class Ahead {
 public:
  Ahead() = default;
  Ahead(const Block& b, std::int64_t times)
      : row_(b.data),
        rows_(b.rows),
        step_(b.ld * size_of(b.type)),
        width_(b.columns * size_of(b.type)),
        lines_(ceil_div(rows_ * ceil_div(width_, kLine), times)) {}

  void ask() {
    for (std::int64_t i = 0; i < lines_ && rows_ > 0; ++i) {
      __builtin_prefetch(row_ + at_, 0, 2);
      at_ += kLine;
      if (at_ >= width_) at_ = 0, row_ += step_, --rows_;
    }
  }

 private:
  static constexpr std::int64_t kLine = 64;

  const std::byte* row_ = nullptr;
  std::int64_t rows_ = 0, step_ = 0, width_ = 0, lines_ = 0, at_ = 0;
};

/// f(begin of the words, elements of the depth) for pieces of so many words.
template <typename O, typename F>
void for_words(Range depth, F&& f) {
  constexpr std::int64_t kElements = kWordsAtOnce * O::kOfWord;
  for (std::int64_t k = depth.begin; k < depth.end; k += kElements)
    f((k - depth.begin) / O::kOfWord, Range{k, at_most(k + kElements, depth.end)});
}

/// to (words of the depth, 64) = these columns of the right operand; columns up to a whole vector
/// are 0.
template <typename O>
void pack_tile(const Product& p, Range columns, Range depth, typename O::Word* to) {
  if (p.b_stored == Stored::straight) {
    O::pack_right(tile_of(p, columns, depth), 1.0F, to, kTile);
    return;
  }
  alignas(64) typename O::Word rows[kTile * kWordsAtOnce];
  for_words<O>(depth, [&](std::int64_t word, Range elements) {
    Block tile = tile_of(p, columns, elements);
    tile.ahead = 0;  // behind it is the next tile, for which others ask
    O::pack_left(tile, 1.0F, rows, kWordsAtOnce);
    O::turn(rows, columns.count(), elements.count(), kWordsAtOnce, to + word * kTile);
  });
}

/// Words of a row of the left operand that is packed as it lies.
template <typename O>
std::int64_t row_words(Range depth) {
  return round_up(O::words_of(depth.count()), kLanes);
}

/// Whether a turned left operand is packed as rows, as floats are multiplied fastest; else
/// kBlockRows words lie side by side for each word of the depth, and one block behind another.
template <typename O>
constexpr bool kTurnedAsRows = O::kOfWord == 1;

/// Words from one row of the left operand to the next where it is packed.
template <typename O>
std::int64_t words_a_row(const Product& p, Range depth) {
  return p.a_stored == Stored::turned && !kTurnedAsRows<O> ? O::words_of(depth.count())
                                                           : row_words<O>(depth);
}

/// A turned left operand, with room for whole squares.
template <typename O>
void pack_turned_left(const Product& p, Range rows, Range depth, typename O::Word* to) {
  using Word = typename O::Word;
  const std::int64_t words = words_a_row<O>(p, depth);
  alignas(64) Word columns[kWordsAtOnce * kPackedRows];
  for_words<O>(depth, [&](std::int64_t word, Range elements) {
    O::pack_right(block_of(p.a, elements, rows), 1.0F, columns, kPackedRows);
    const std::int64_t here = at_most(kWordsAtOnce, words - word);
    if constexpr (kTurnedAsRows<O>) {
      for (std::int64_t r = 0; r < rows.count(); r += kLanes) {
        for (std::int64_t k = 0; k < here; k += kLanes) {
          turn_square(columns + k * kPackedRows + r, kPackedRows * std::int64_t{sizeof(Word)},
                      to + r * words + word + k, words);
        }
      }
    } else {
      for (std::int64_t block = 0; block * kBlockRows < rows.count(); ++block) {
        Word* own = to + (block * words + word) * kBlockRows;
        for (std::int64_t k = 0; k < here; ++k) {
          std::memcpy(own + k * kBlockRows, columns + k * kPackedRows + block * kBlockRows,
                      kBlockRows * sizeof(Word));
        }
      }
    }
  });
}

/// Where the register block of rows from `row` on begins.
template <typename O>
TileA<typename O::Word> left_of(const Product& p, const ProductPart& part, std::int64_t row) {
  using Word = typename O::Word;
  if (part.left == nullptr) {
    const std::byte* own = p.a.data + (row * p.a.ld + part.depth.begin) * size_of(p.a.type);
    return {reinterpret_cast<const Word*>(own), p.a.ld / O::kOfWord, 1};
  }
  const auto* packed = reinterpret_cast<const Word*>(part.left);
  const std::int64_t words = words_a_row<O>(p, part.depth);
  const Word* own = packed + (row - part.block_rows.begin) * words;
  if (p.a_stored == Stored::turned && !kTurnedAsRows<O>) return {own, 1, kBlockRows};
  return {own, words, 1};
}

template <typename O>
void multiply_tile(const Product& p, const ProductPart& part, Range columns,
                   const typename O::Word* right, Ahead ahead) {
  const int vecs = static_cast<int>(ceil_div(columns.count(), kLanes));
  alignas(64) float own[kBlockRows * kTile];
  for (std::int64_t r = part.rows.begin; r < part.rows.end; r += kBlockRows) {
    const Range rows{r, at_most(r + kBlockRows, part.rows.end)};
    ahead.ask();
    const TileC sums = sums_of(part, rows, columns, own);
    if (part.last) ask_for_result(p, rows, columns);
    O::multiply(rows.count(), vecs, part.depth.count(), left_of<O>(p, part, r), {right, kTile},
                sums, part.depth.begin == 0 ? Write::overwrite : Write::add);
    if (part.last) finish(p, sums, rows, columns);
  }
}

}  // namespace

// A packed tile lies in the second-level cache.
ProductForm product_form(DType type) {
  ProductForm form{.block_rows = kBlockRows, .depth_words = 1536, .cut_words = 1536, .packing = 9};
  with_operands(type, [&]<typename O>() { form.word = form.whole_depth = O::kOfWord; });
  return form;
}

void pack_left(const Product& p, const ProductPart& part) {
  with_operands(p.a.type, [&]<typename O>() {
    const std::int64_t words = words_a_row<O>(p, part.depth);
    auto* left = reinterpret_cast<typename O::Word*>(part.left);
    for (std::int64_t r = part.rows.begin; r < part.rows.end; r += kPackedRows) {
      const Range rows{r, at_most(r + kPackedRows, part.rows.end)};
      auto* to = left + (r - part.block_rows.begin) * words;
      if (p.a_stored == Stored::turned) {
        pack_turned_left<O>(p, rows, part.depth, to);
      } else {
        O::pack_left(block_of(p.a, rows, part.depth), 1.0F, to, words);
      }
    }
  });
}

void multiply_part(const Product& p, const ProductPart& part) {
  with_operands(p.a.type, [&]<typename O>() {
    auto* right = reinterpret_cast<typename O::Word*>(part.right);
    for (std::int64_t c = part.columns.begin; c < part.columns.end; c += kTile) {
      const Range columns{c, at_most(c + kTile, part.columns.end)};
      pack_tile<O>(p, columns, part.depth, right);
      const Range next{columns.end, at_most(columns.end + kTile, part.columns.end)};
      const Ahead ahead = next.empty() ? Ahead()
                                       : Ahead(tile_of(p, next, part.depth),
                                               ceil_div(part.rows.count(), kBlockRows));
      multiply_tile<O>(p, part, columns, right, ahead);
    }
  });
  settle_stores();
}

}  // namespace tessera::kernels::TESSERA_ISA
