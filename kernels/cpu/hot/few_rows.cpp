// Products of a few rows with a matrix that is read once, from where it lies.
#include "kernels/cpu/hot/coded_rows.hpp"
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

/// A weight of elements, multiplied from where they lie.
template <typename T>
struct StoredWeight {
  const FewRows& p;
  View x;  // as floats
  /// Sums with rows [first, first + kColumns).
  template <int kColumns>
  void multiply(std::int64_t first, Sums& sums, std::int64_t column) const {
    const Rows<const T> own{row_of<const T>(p.weight, first), p.weight.ld};
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
    const Stored stored{reinterpret_cast<const std::byte*>(own.data), own.ld * kSize, kSize * 8};
    few_columns<kColumns, T>(x, own, stored, sums, column);
  }
};

/// A weight of codes, which are elements in registers where these meet all rows of x at once, else
/// in `elements`.
template <BlockType kType, typename T>
struct CodedWeight {
  const FewRows& p;
  View x;  // as floats
  T* elements;
  template <int kColumns>
  void multiply(std::int64_t first, Sums& sums, std::int64_t column) const {
    const std::int64_t rows = x.shape[0], k = x.shape[1];
    const bool whole = has_whole_blocks(p);
    if (whole && rows <= kRowsAtOnce)
      return dot_codes<kRowsAtOnce, kColumns, kType, T>(x, code_rows(p, first), sums, column);
    if (whole) {
      decode_blocks<kType, T>(code_rows(p, first), kColumns, elements);
    } else {
      decode<kType, T>(p, {first * k, (first + kColumns) * k}, elements);
    }
    const Stored stored{row_of<std::byte>(p.weight, first), p.weight.ld, kBitsOf<kType>};
    few_columns<kColumns, T>(x, {elements, k}, stored, sums, column);
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
  const Vec added = bias_of(p, columns.begin, count);
  for (std::int64_t r = 0; r < p.x.shape[0]; ++r)
    store(row_of<Y>(p.y, r) + columns.begin, load(sums[r], count) + added, count);
}

/// What pack_few_rows() makes.
View floats_of(const FewRows& p) {
  return View(p.packed, DType::f32, {p.x.shape[0], p.x.shape[1]});
}

template <typename Weight>
void few_rows(const FewRows& p, const Weight& weight, Range columns) {
  with_type(p.y.type, [&]<typename Y>() {
    for (std::int64_t c = columns.begin; c < columns.end; c += kLanes)
      few_rows_block<Y>(p, weight, {c, at_most(c + kLanes, columns.end)});
  });
}

}  // namespace

FewRowsScratch few_rows_scratch(const FewRows& p) {
  const std::int64_t k = p.x.shape[1];
  return {.packed = p.x.type == DType::f32 ? 0 : p.x.shape[0] * k * std::int64_t{sizeof(float)},
          .weight = p.codes ? kColumnsAtOnce * k * size_of(p.x.type) : 0};
}

void pack_few_rows(const FewRows& p) {
  convert(p.x, floats_of(p), Write::overwrite, {0, p.x.shape[0]});
}

void multiply_few_rows(const FewRows& p, Range columns, std::byte* weight) {
  const View x = p.packed == nullptr ? p.x : floats_of(p);
  with_type(p.x.type, [&]<typename T>() {
    if (!p.codes) return few_rows(p, StoredWeight<T>{p, x}, columns);
    with_block_type(p.codes.format.type, [&]<BlockType kType>() {
      if constexpr (kType != BlockType::sign)
        few_rows(p, CodedWeight<kType, T>{p, x, reinterpret_cast<T*>(weight)}, columns);
    });
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
