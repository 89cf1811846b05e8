// Products of a few rows with a matrix that is read once, from where it lies.
#include "kernels/cpu/hot/codes.hpp"
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

// Rows of x and of the weight whose products are added up at once, most of the register file.
#if defined(__AVX512F__)
constexpr int kRowsAtOnce = 4, kColumnsAtOnce = 4;
#elif defined(__AVX2__)
constexpr int kRowsAtOnce = 2, kColumnsAtOnce = 2;
#else
constexpr int kRowsAtOnce = 1, kColumnsAtOnce = 1;
#endif
static_assert(kColumnsAtOnce <= kMostFewColumns);

template <typename T>
struct Rows {
  T* data;
  std::int64_t ld;
  T* row(std::int64_t r) const { return data + r * ld; }
};

/// Results of some rows and sixteen columns.
using Sums = float[kMostFewRows][kLanes];

/// Rows of the weight as they lie in memory, to ask for.
struct Stored {
  const std::byte* data;
  std::int64_t row, bits;  // bytes of a row, and bits of an element
  TESSERA_INLINE void ask(Range rows, std::int64_t element) const {
    for (std::int64_t r = rows.begin; r < rows.end; ++r)
      __builtin_prefetch(data + r * row + element * bits / 8);
  }
};

/// sums[first + r][column + c] = x[r] . w[c]: a chain of multiply-adds in each of 16 lanes, which
/// are then added up, however many rows there are. Of the weight the rows `ahead` are read soon.
template <int kRows, int kColumns, typename T>
inline void dot_rows(Rows<const float> x, Rows<const T> w, std::int64_t k, const Stored& stored,
                     Range ahead, Sums& sums, std::int64_t first, std::int64_t column) {
  Vec sum[kRows][kColumns];
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kColumns; ++c) sum[r][c] = Vec(0.0F);
  for_vectors(
      k, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        stored.ask(ahead, i);
        Vec factors[kColumns];
        for (int c = 0; c < kColumns; ++c) factors[c] = load(w.row(c) + i, count);
        for (int r = 0; r < kRows; ++r) {
          const Vec own = load(x.row(r) + i, count);
          for (int c = 0; c < kColumns; ++c) sum[r][c] = fmadd(own, factors[c], sum[r][c]);
        }
      });
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kColumns; ++c) sums[first + r][column + c] = sum_of(sum[r][c]);
}

/// Of all rows, with weights [column, column + kColumns) of the block, the first of `own` and of
/// what is stored. While rows meet them, those that follow come from memory, of which each pass
/// asks for a part.
template <int kColumns, typename T>
void few_columns(const View& x, Rows<const T> own, const Stored& stored, Sums& sums,
                 std::int64_t column) {
  const std::int64_t rows = x.shape[0], k = x.shape[1];
  const std::int64_t passes = rows / kRowsAtOnce + rows % kRowsAtOnce,
                     each = ceil_div(kColumns, passes);
  Range ahead{kColumns, kColumns + each};
  const auto next = [&] {
    ahead = {ahead.end, at_most(ahead.end + each, std::int64_t{2 * kColumns})};
  };
  std::int64_t r = 0;
  for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce, next()) {
    dot_rows<kRowsAtOnce, kColumns, T>({row_of<const float>(x, r), x.ld}, own, k, stored, ahead,
                                       sums, r, column);
  }
  for (; r < rows; ++r, next())
    dot_rows<1, kColumns, T>({row_of<const float>(x, r), x.ld}, own, k, stored, ahead, sums, r,
                             column);
}

/// Codes of a weight, from one of its rows on.
struct CodeRows {
  const std::byte* codes;
  const float* scales;
  std::int64_t columns, block;
};
CodeRows code_rows(const FewRows& p, std::int64_t row) {
  const std::int64_t columns = p.x.shape[1], block = p.codes.format.block;
  return {row_of<std::byte>(p.weight, row),
          row_of<const float>(p.codes.scales, 0) + row * columns / block, columns, block};
}
/// Whether rows are whole blocks, and blocks whole vectors.
bool has_whole_blocks(const FewRows& p) {
  const std::int64_t block = p.codes.format.block;
  return p.x.shape[1] % block == 0 && block % kLanes == 0;
}

/// sums[r][column + c] = x[r] . w[c] of whole blocks, with the bits of dot_rows().
template <int kRows, int kColumns, BlockType kType, typename T>
inline void dot_codes(Rows<const float> x, const CodeRows& w, Sums& sums, std::int64_t column) {
  constexpr std::int64_t kBits = kBitsOf<kType>;
  const std::int64_t row = w.columns * kBits / 8, scales = w.columns / w.block;
  Vec sum[kRows][kColumns];
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kColumns; ++c) sum[r][c] = Vec(0.0F);
  const auto dot_block = [&]<std::size_t... c>(std::int64_t b, std::index_sequence<c...>)
      __attribute__((always_inline)) {
    const BlockValues<kType, T> values[] = {BlockValues<kType, T>(w.scales[c * scales + b])...};
    for (std::int64_t i = b * w.block; i < (b + 1) * w.block; i += kLanes) {
      const std::byte* codes = w.codes + i * kBits / 8;
      const Vec factors[] = {values[c].at(codes + c * row)...};
      for (int r = 0; r < kRows; ++r) {
        const Vec own = load(x.row(r) + i, kLanes);
        ((sum[r][c] = fmadd(own, factors[c], sum[r][c])), ...);
      }
    }
  };
  for (std::int64_t b = 0; b < scales; ++b) {
    for (int c = 0; c < kColumns; ++c)
      __builtin_prefetch(w.codes + (kColumns + c) * row + b * w.block * kBits / 8);
    dot_block(b, std::make_index_sequence<kColumns>());
  }
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kColumns; ++c) sums[r][column + c] = sum_of(sum[r][c]);
}
/// Of as many rows of x as there are, which is no more than kRows.
template <int kRows, int kColumns, BlockType kType, typename T>
void dot_codes(const View& x, const CodeRows& w, Sums& sums, std::int64_t column) {
  if constexpr (kRows > 1) {
    if (x.shape[0] < kRows) return dot_codes<kRows - 1, kColumns, kType, T>(x, w, sums, column);
  }
  dot_codes<kRows, kColumns, kType, T>({row_of<const float>(x, 0), x.ld}, w, sums, column);
}

/// Elements of rows of codes in whole blocks, as kernels::SumQuantized makes them.
template <BlockType kType, typename T>
void decode_blocks(const CodeRows& w, std::int64_t rows, T* to) {
  constexpr std::int64_t kBits = kBitsOf<kType>;
  const std::int64_t blocks = rows * w.columns / w.block;
  const std::byte* codes = w.codes;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const BlockValues<kType, T> values(w.scales[b]);
    for (std::int64_t i = 0; i < w.block; i += kLanes, codes += kLanes * kBits / 8, to += kLanes)
      store_values(to, values.at(codes));
  }
}
/// The same of any elements.
template <BlockType kType, typename T>
void decode(const FewRows& p, Range elements, T* to) {
  const std::int64_t block = p.codes.format.block;
  const auto* scales = row_of<const float>(p.codes.scales, 0);
  for (std::int64_t i = elements.begin; i < elements.end;) {
    const Vec scale(scales[i / block]);
    const std::byte* codes = p.weight.data + i * kBitsOf<kType> / 8;
    const std::int64_t n = at_most((i / block + 1) * block, elements.end) - i;
    for_vectors(
        n, [&](std::int64_t at, std::int64_t count) __attribute__((always_inline)) {
          store(to + at, load_values<kType>(codes + at * kBitsOf<kType> / 8, scale, count), count);
        });
    i += n, to += n;
  }
}

/// A weight of elements, multiplied from where they lie.
template <typename T>
struct StoredWeight {
  const FewRows& p;
  /// Sums with rows [first, first + kColumns).
  template <int kColumns>
  void multiply(std::int64_t first, Sums& sums, std::int64_t column) const {
    const Rows<const T> own{row_of<const T>(p.weight, first), p.weight.ld};
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
    const Stored stored{reinterpret_cast<const std::byte*>(own.data), own.ld * kSize, kSize * 8};
    few_columns<kColumns, T>(p.x, own, stored, sums, column);
  }
};

/// A weight of codes, which are elements in registers where these meet all rows of x at once, else
/// in `elements`.
template <BlockType kType, typename T>
struct CodedWeight {
  const FewRows& p;
  T* elements;
  template <int kColumns>
  void multiply(std::int64_t first, Sums& sums, std::int64_t column) const {
    const std::int64_t rows = p.x.shape[0], k = p.x.shape[1];
    const bool whole = has_whole_blocks(p);
    if (whole && rows <= kRowsAtOnce)
      return dot_codes<kRowsAtOnce, kColumns, kType, T>(p.x, code_rows(p, first), sums, column);
    if (whole) {
      decode_blocks<kType, T>(code_rows(p, first), kColumns, elements);
    } else {
      decode<kType, T>(p, {first * k, (first + kColumns) * k}, elements);
    }
    const Stored stored{row_of<std::byte>(p.weight, first), p.weight.ld, kBitsOf<kType>};
    few_columns<kColumns, T>(p.x, {elements, k}, stored, sums, column);
  }
};

/// Sixteen columns at most.
template <typename Y, typename Weight>
void few_rows_block(const FewRows& p, const Weight& weight, Range columns) {
  const std::int64_t count = columns.count();
  Sums sums;
  std::int64_t c = 0;
  for (; c + kColumnsAtOnce <= count; c += kColumnsAtOnce)
    weight.template multiply<kColumnsAtOnce>(columns.begin + c, sums, c);
  for (; c < count; ++c) weight.template multiply<1>(columns.begin + c, sums, c);
  Vec added(0.0F);
  if (p.bias.data != nullptr) {
    with_type(p.bias.type, [&]<typename B>() {
      added = load(row_of<const B>(p.bias, 0) + columns.begin, count);
    });
  }
  for (std::int64_t r = 0; r < p.x.shape[0]; ++r)
    store(row_of<Y>(p.y, r) + columns.begin, load(sums[r], count) + added, count);
}

template <typename Weight>
void few_rows(const FewRows& p, const Weight& weight, Range columns) {
  with_type(p.y.type, [&]<typename Y>() {
    for (std::int64_t c = columns.begin; c < columns.end; c += kLanes)
      few_rows_block<Y>(p, weight, {c, at_most(c + kLanes, columns.end)});
  });
}

}  // namespace

void multiply_few_rows(const FewRows& p, Range columns, std::byte* elements) {
  with_type(p.type, [&]<typename T>() {
    if (p.codes.scales.data == nullptr) return few_rows(p, StoredWeight<T>{p}, columns);
    with_block_type(p.codes.format.type, [&]<BlockType kType>() {
      if constexpr (kType != BlockType::sign)
        few_rows(p, CodedWeight<kType, T>{p, reinterpret_cast<T*>(elements)}, columns);
    });
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
