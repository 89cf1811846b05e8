// Products of a few rows with a matrix that is read once, from where it lies.
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

/// sums[first + r][column + c] = x[r] . w[c]: a chain of multiply-adds in each of 16 lanes, which
/// are then added up, however many rows there are. Of w the rows `ahead` are read soon.
template <int kRows, int kColumns, typename T>
inline void dot_rows(Rows<const float> x, Rows<const T> w, std::int64_t k, Range ahead, Sums& sums,
                     std::int64_t first, std::int64_t column) {
  Vec sum[kRows][kColumns];
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kColumns; ++c) sum[r][c] = Vec(0.0F);
  for_vectors(
      k, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        for (std::int64_t r = ahead.begin; r < ahead.end; ++r) __builtin_prefetch(w.row(r) + i);
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

/// Of all rows, with weights [column, column + kColumns) from the block's first one on. While rows
/// meet them, those behind them come from memory, of which each pass asks for a part.
template <int kColumns, typename T>
void few_columns(const View& x, Rows<const T> w, Sums& sums, std::int64_t column) {
  const std::int64_t rows = x.shape[0], k = x.shape[1];
  const Rows<const T> own{w.row(column), w.ld};
  const std::int64_t passes = rows / kRowsAtOnce + rows % kRowsAtOnce,
                     each = ceil_div(kColumns, passes);
  Range ahead{kColumns, kColumns + each};
  const auto next = [&] {
    ahead = {ahead.end, at_most(ahead.end + each, std::int64_t{2 * kColumns})};
  };
  std::int64_t r = 0;
  for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce, next()) {
    dot_rows<kRowsAtOnce, kColumns, T>({row_of<const float>(x, r), x.ld}, own, k, ahead, sums, r,
                                       column);
  }
  for (; r < rows; ++r, next())
    dot_rows<1, kColumns, T>({row_of<const float>(x, r), x.ld}, own, k, ahead, sums, r, column);
}

/// Sixteen columns at most.
template <typename T, typename Y>
void few_rows_block(const View& x, const View& weight, const View& bias, const View& y,
                    Range columns) {
  const Rows<const T> w{row_of<const T>(weight, columns.begin), weight.ld};
  const std::int64_t count = columns.count();
  Sums sums;
  std::int64_t c = 0;
  for (; c + kColumnsAtOnce <= count; c += kColumnsAtOnce)
    few_columns<kColumnsAtOnce, T>(x, w, sums, c);
  for (; c < count; ++c) few_columns<1, T>(x, w, sums, c);
  Vec added(0.0F);
  if (bias.data != nullptr) {
    with_type(bias.type,
              [&]<typename B>() { added = load(row_of<const B>(bias, 0) + columns.begin, count); });
  }
  for (std::int64_t r = 0; r < x.shape[0]; ++r)
    store(row_of<Y>(y, r) + columns.begin, load(sums[r], count) + added, count);
}

}  // namespace

void multiply_few_rows(const View& x, const View& weight, const View& bias, const View& y,
                       Range columns) {
  with_type(weight.type, [&]<typename T>() {
    with_type(y.type, [&]<typename Y>() {
      for (std::int64_t c = columns.begin; c < columns.end; c += kLanes)
        few_rows_block<T, Y>(x, weight, bias, y, {c, at_most(c + kLanes, columns.end)});
    });
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
