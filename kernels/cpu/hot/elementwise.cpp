// Loops of conversion, of sums over parts, and of exact sums.
#include "core/exact_sum.hpp"
#include "kernels/common/tree.hpp"
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

template <typename T>
void sum_rows_of(const View& x, const View& out, Write write, Range columns) {
  constexpr int kVecs = 4;                // columns of a strip, in vectors
  constexpr std::int64_t kRowBlock = 64;  // rows added in one go: two levels keep rounding small
  const std::int64_t rows = x.shape[0];
  for (std::int64_t c = columns.begin; c < columns.end; c += kVecs * kLanes) {
    const std::int64_t width = columns.end - c < kVecs * kLanes ? columns.end - c : kVecs * kLanes;
    float total[kVecs * kLanes] = {};
    for (std::int64_t r0 = 0; r0 < rows; r0 += kRowBlock) {
      const std::int64_t end = rows - r0 < kRowBlock ? rows : r0 + kRowBlock;
      Vec sum[kVecs];
      for (auto& s : sum) s = Vec(0.0F);
      for (std::int64_t r = r0; r < end; ++r) {
        const T* from = row_of<T>(x, r) + c;
        if (width == kVecs * kLanes) {
          for (int k = 0; k < kVecs; ++k) sum[k] = sum[k] + load(from + k * kLanes, kLanes);
        } else {
          for_vectors(
              width, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
                sum[i / kLanes] = sum[i / kLanes] + load(from + i, count);
              });
        }
      }
      for (int k = 0; k < kVecs; ++k) {
        store(total + k * kLanes, load(total + k * kLanes, kLanes) + sum[k], kLanes);
      }
    }
    with_type(out.type, [&]<typename G>() {
      G* to = row_of<G>(out, 0) + c;
      for_vectors(
          width, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
            const Vec v = load(total + i, count);
            store(to + i, write == Write::add ? load(to + i, count) + v : v, count);
          });
    });
  }
}

// Exact sums by error-free extraction (Rump, Ogita and Oishi 2008): with all |x| < 2^top and
// M = 1.5 2^(top + 12), (x + M) - M is x rounded to a multiple of 2^(top - 40), exactly, and so is
// the remainder. A block's 2^11 rounded parts add up without rounding (40 + 11 < 53 bits), in any
// order; then the remainders, 40 bits lower, until all are 0. Squares of f32 have 48 bits, so two
// rounds, which are one pass, do where nothing is below 2^-17 of the block's largest element.
constexpr std::int64_t kExactBlock = 2048;
constexpr int kExactBits = 40;

/// M of parts below 2^top.
double extractor(int top) { return 1.5 * __builtin_ldexp(1.0, top + 52 - kExactBits); }

/// The bits of a remainder; none of one that is 0 or -0.
std::int64_t bits_left(double low) { return __builtin_bit_cast(std::int64_t, low + 0.0); }

void add_exactly(double sum, std::int64_t* words) {
  exact_add(ExactWords(words, kExactSumWords), sum);
}

/// Adds x[0 .. n), all below 2^top, to the words; x is used up.
void add_block(double* x, std::int64_t n, int top, std::int64_t* words) {
  for (bool rest = true; rest; top -= kExactBits) {
    const double big = extractor(top);
    double sum = 0;
    std::int64_t left = 0;
#pragma omp simd reduction(+ : sum) reduction(| : left)
    for (std::int64_t i = 0; i < n; ++i) {
      const double high = (x[i] + big) - big;
      x[i] = x[i] - high;
      sum += high;
      left |= bits_left(x[i]);
    }
    add_exactly(sum, words);
    rest = left != 0;
  }
}

/// Adds term(x[0 .. n)), all below 2^top, to the words.
template <typename Term>
void add_terms(const float* x, std::int64_t n, int top, const Term& term, std::int64_t* words) {
  const double first = extractor(top), second = extractor(top - kExactBits);
  double high_sum = 0, low_sum = 0;
  std::int64_t left = 0;
#pragma omp simd reduction(+ : high_sum, low_sum) reduction(| : left)
  for (std::int64_t i = 0; i < n; ++i) {
    const double t = term(static_cast<double>(x[i]));
    const double high = (t + first) - first, rest = t - high, low = (rest + second) - second;
    high_sum += high;
    low_sum += low;
    left |= bits_left(rest - low);
  }
  add_exactly(high_sum, words);
  add_exactly(low_sum, words);
  if (left == 0) return;
  alignas(64) double lost[kExactBlock];
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const double t = term(static_cast<double>(x[i]));
    const double rest = t - ((t + first) - first);
    lost[i] = rest - ((rest + second) - second);
  }
  add_block(lost, n, top - 2 * kExactBits, words);
}

template <typename T>
void exact_sum_of(const T* x, std::int64_t n, ExactSum::Of of, std::int64_t* words) {
  alignas(64) float value[kExactBlock];
  for (std::int64_t i = 0; i < n; i += kExactBlock) {
    const std::int64_t count = n - i < kExactBlock ? n - i : kExactBlock;
    for_vectors(
        count, [&](std::int64_t j, std::int64_t k)
                   __attribute__((always_inline)) { store(value + j, load(x + i + j, k), k); });
    std::int32_t largest = 0;  // bits of |value| order like the values
#pragma omp simd reduction(max : largest)
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int32_t bits = __builtin_bit_cast(std::int32_t, value[j]) & 0x7fffffff;
      largest = bits > largest ? bits : largest;
    }
    if (largest == 0) continue;
    if (largest >= 0x7f800000) {
      largest = 0x7f7fffff;
      for (std::int64_t j = 0; j < count; ++j) {
        const std::int32_t bits = __builtin_bit_cast(std::int32_t, value[j]) & 0x7fffffff;
        if (bits < 0x7f800000) continue;
        ++words[bits > 0x7f800000 ? kExactSumNan : kExactSumInf];
        value[j] = 0;
      }
    }
    const int top = (largest >> 23) - 126;  // |value| < 2^top
    if (of == ExactSum::Of::values) {
      add_terms(
          value, count, top, [](double v) { return v; }, words);
    } else {
      add_terms(
          value, count, 2 * top, [](double v) { return v * v; }, words);
    }
  }
}

/// Elements e .. e + n of the sum; `bias`, if any, begins at the column of e.
template <typename B, typename T>
void tree_sum_run(const TreeSum& a, std::int64_t e, std::int64_t n, const B* bias, T* out) {
  const auto* parts = reinterpret_cast<const float*>(a.parts.data) + e;
  const std::int64_t count = a.parts.shape[0], stride = a.parts.shape[1];
  for_vectors(
      n, [&](std::int64_t i, std::int64_t lanes) __attribute__((always_inline)) {
        Vec sum = kernels::tree_sum(
            count, [&](std::int64_t p) { return load(parts + p * stride + i, lanes); });
        if (bias != nullptr) sum = sum + load(bias + i, lanes);
        store(out + i, a.write == Write::add ? load(out + i, lanes) + sum : sum, lanes);
      });
}

}  // namespace

void convert(const View& x, const View& out, Write write, Range rows) {
  const std::int64_t columns = columns_of(x);
  with_type(x.type, [&]<typename T>() {
    with_type(out.type, [&]<typename G>() {
      for (std::int64_t r = rows.begin; r < rows.end; ++r) {
        const T* from = row_of<T>(x, r);
        G* to = row_of<G>(out, r);
        for_vectors(
            columns, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
              const Vec v = load(from + i, count);
              store(to + i, write == Write::add ? load(to + i, count) + v : v, count);
            });
      }
    });
  });
}

void blend(const Blend& a, float factor, Range elements) {
  const float* y = row_of<float>(a.y, 0) + elements.begin;
  float* out = row_of<float>(a.out, 0) + elements.begin;
  for_vectors(
      elements.end - elements.begin, [&](std::int64_t i,
                                         std::int64_t count) __attribute__((always_inline)) {
        store(out + i, fmadd(load(out + i, count), Vec(a.keep), load(y + i, count) * Vec(factor)),
              count);
      });
}

void tree_sum(const TreeSum& a, Range elements) {
  const std::int64_t columns = columns_of(a.out);
  with_type(a.out.type, [&]<typename T>() {
    T* out = row_of<T>(a.out, 0);
    if (a.bias.data == nullptr) {
      tree_sum_run<T, T>(a, elements.begin, elements.end - elements.begin, nullptr,
                         out + elements.begin);
      return;
    }
    with_type(a.bias.type, [&]<typename B>() {
      for (std::int64_t e = elements.begin; e < elements.end;) {
        const std::int64_t c = e % columns, rest = elements.end - e;
        const std::int64_t n = rest < columns - c ? rest : columns - c;
        tree_sum_run(a, e, n, row_of<B>(a.bias, 0) + c, out + e);
        e += n;
      }
    });
  });
}

void sum_rows(const View& x, const View& out, Write write, Range columns) {
  with_type(x.type, [&]<typename T>() { sum_rows_of<T>(x, out, write, columns); });
}

void exact_sum(const View& x, ExactSum::Of of, Range elements, std::int64_t* words) {
  with_type(x.type, [&]<typename T>() {
    exact_sum_of(row_of<T>(x, 0) + elements.begin, elements.end - elements.begin, of, words);
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
