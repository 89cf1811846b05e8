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

// Exact sums by error-free extraction (Rump, Ogita and Oishi 2008): with all |t| < 2^top and a sum
// that begins at M = 1.5 2^(top + 12), sum + t is rounded to a multiple of 2^(top - 40), so what it
// gained and what of t it lost are exact too. A block's 2^11 terms leave the sum below 2^(top +
// 13), where this holds. What is lost is below 2^(top - 40): it enters a sum of the next level, 40
// bits lower, or, where the block's smallest term leaves no bit below the 53 of a double, a plain
// one.
constexpr std::int64_t kExactBlock = 2048;
constexpr int kExactBits = 40;

/// M of terms below 2^top.
double extractor(int top) { return 1.5 * __builtin_ldexp(1.0, top + 52 - kExactBits); }

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
      left |= __builtin_bit_cast(std::int64_t, x[i] + 0.0);  // no bits of -0
    }
    add_exactly(sum, words);
    rest = left != 0;
  }
}

constexpr int kHalf = kNative / 2;       // doubles of a register
constexpr int kHalves = kLanes / kHalf;  // registers of a vector's doubles
using NativeDouble = double __attribute__((vector_size(8 * kHalf)));
using HalfFloat = float __attribute__((vector_size(4 * kHalf)));

TESSERA_INLINE NativeDouble doubles_of(const HalfFloat& v) {
#if defined(__AVX512F__)
  return _mm512_maskz_cvtps_pd(0xff, v);
#elif defined(__AVX2__)
  return _mm256_cvtps_pd(v);
#else
  return __builtin_convertvector(v, NativeDouble);
#endif
}

/// v + c, or v v + c: the product of two floats is a double, so fused or not, it is rounded once.
template <ExactSum::Of of>
TESSERA_INLINE NativeDouble term_plus(const NativeDouble& v, const NativeDouble& c) {
  if constexpr (of == ExactSum::Of::values) return v + c;
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(v, v, c);
#elif defined(__FMA__)
  return _mm256_fmadd_pd(v, v, c);
#else
  return v * v + c;
#endif
}

/// The sum over all lanes of s - from, which is exact.
TESSERA_INLINE double sum_over(const NativeDouble (&s)[kHalves], double from) {
  NativeDouble lanes = {};
  for (const NativeDouble& part : s) lanes = lanes + (part - from);
  double sum = 0;
  for (int i = 0; i < kHalf; ++i) sum += lanes[i];
  return sum;
}

/// Adds the terms of x[0 .. n), all finite and below 2^top, to the words. What `kLevels` levels
/// lose of them must add up without rounding. Meanwhile the next block comes from memory: x is
/// near, as its magnitudes were looked at.
template <ExactSum::Of of, int kLevels, typename T>
void add_terms(const T* x, std::int64_t n, int top, std::int64_t* words) {
  NativeDouble sum[kLevels][kHalves], lost[kHalves] = {};
  for (int k = 0; k < kLevels; ++k) {
    for (auto& s : sum[k]) s = extractor(top - k * kExactBits) - NativeDouble{};
  }
  for_vectors(
      n, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        __builtin_prefetch(reinterpret_cast<const std::byte*>(x + i) + kExactBlock * sizeof(T));
        const Vec v = load(x + i, count);
        HalfFloat half[kHalves];
        std::memcpy(half, &v, sizeof(v));
        for (int h = 0; h < kHalves; ++h) {
          const NativeDouble t = doubles_of(half[h]);
          NativeDouble next = term_plus<of>(t, sum[0][h]);
          NativeDouble rest = term_plus<of>(t, sum[0][h] - next);
          sum[0][h] = next;
          for (int k = 1; k < kLevels; ++k) {
            next = sum[k][h] + rest;
            rest = rest - (next - sum[k][h]);
            sum[k][h] = next;
          }
          lost[h] = lost[h] + rest;
        }
      });
  for (int k = 0; k < kLevels; ++k)
    add_exactly(sum_over(sum[k], extractor(top - k * kExactBits)), words);
  add_exactly(sum_over(lost, 0), words);
}

/// As add_terms, whatever x holds.
template <ExactSum::Of of, typename T>
void add_any_terms(const T* x, std::int64_t n, std::int64_t* words) {
  alignas(64) double term[kExactBlock];
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto v = static_cast<float>(x[i]);
    const std::int32_t bits = __builtin_bit_cast(std::int32_t, v) & 0x7fffffff;
    term[i] = 0;
    if (bits >= 0x7f800000) {
      ++words[bits > 0x7f800000 ? kExactSumNan : kExactSumInf];
    } else {
      largest = bits > largest ? bits : largest;
      term[i] = of == ExactSum::Of::values ? double{v} : double{v} * double{v};
    }
  }
  const int top = (largest >> 23) - 126;
  add_block(term, n, of == ExactSum::Of::values ? top : 2 * top, words);
}

template <ExactSum::Of of, typename T>
void exact_sum_of(const T* x, std::int64_t n, std::int64_t* words) {
  constexpr int kPower = of == ExactSum::Of::values ? 1 : 2;
  for (std::int64_t i = 0; i < n; i += kExactBlock) {
    const std::int64_t count = n - i < kExactBlock ? n - i : kExactBlock;
    LargestMagnitude largest;
    SmallestMagnitude smallest;
    for_vectors(
        count, [&](std::int64_t j, std::int64_t k) __attribute__((always_inline)) {
          const Vec v = load(x + i + j, k);
          largest.take(v);
          smallest.take(v);
        });
    if (largest.bits() == 0) continue;
    // Terms are below 2^top and multiples of 2^bottom.
    const int top = kPower * ((largest.bits() >> 23) - 126);
    const int exponent = smallest.bits() >> 23;
    const int bottom = kPower * ((exponent > 0 ? exponent : 1) - 127 - 23);
    // What is lost adds up to 2^(top - 40 levels - 1 + 11) at most.
    const auto do_levels = [&](int levels) {
      return largest.bits() < 0x7f800000 && top - kExactBits * levels + 10 - bottom <= 53;
    };
    if (do_levels(1)) {
      add_terms<of, 1>(x + i, count, top, words);
    } else if (do_levels(2)) {
      add_terms<of, 2>(x + i, count, top, words);
    } else {
      add_any_terms<of>(x + i, count, words);
    }
  }
}

/// The tree over term(0) .. term(n - 1): over groups of eight, which are nodes of it, then over
/// what these come to.
template <typename Term>
TESSERA_INLINE Vec add_up(std::int64_t n, Term&& term) {
  constexpr int kFew = 8;
  const auto of_group = [&](std::int64_t g) __attribute__((always_inline)) {
    return small_tree_sum<kFew>(static_cast<int>(n), term, static_cast<int>(g) * kFew);
  };
  return n <= kFew ? of_group(0) : kernels::tree_sum(ceil_div(n, kFew), of_group);
}

/// Elements e .. e + n of the sum; `bias`, if any, begins at the column of e.
template <typename P, typename B, typename T>
void tree_sum_run(const TreeSum& a, std::int64_t e, std::int64_t n, const B* bias, T* out) {
  const auto* parts = reinterpret_cast<const P*>(a.parts.data) + e;
  const std::int64_t count = a.parts.shape[0], stride = a.parts.shape[1];
  for_vectors(
      n, [&](std::int64_t i, std::int64_t lanes) __attribute__((always_inline)) {
        Vec sum = add_up(
            count, [&](std::int64_t p) __attribute__((always_inline)) {
              return load(parts + p * stride + i, lanes);
            });
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
      return with_type(a.parts.type, [&]<typename P>() {
        tree_sum_run<P, T, T>(a, elements.begin, elements.count(), nullptr, out + elements.begin);
      });
    }
    with_type(a.bias.type, [&]<typename B>() {
      for (std::int64_t e = elements.begin; e < elements.end;) {
        const std::int64_t c = e % columns, rest = elements.end - e;
        const std::int64_t n = rest < columns - c ? rest : columns - c;
        tree_sum_run<float>(a, e, n, row_of<B>(a.bias, 0) + c, out + e);
        e += n;
      }
    });
  });
}

namespace {

/// What a part has added, as it travels: of f32 or the wire's type.
template <typename Wire>
TESSERA_INLINE Vec contribution(const SumPart& part, std::int64_t e, std::int64_t lanes) {
  const auto at = [&]<typename T>(const T* data) __attribute__((always_inline)) {
    return load(data + e, lanes);
  };
  if (part.type == DType::bf16) return at(reinterpret_cast<const bf16*>(part.data));
  if (part.type == DType::f16) return at(reinterpret_cast<const f16*>(part.data));
  return rounded_to<Wire>(at(reinterpret_cast<const float*>(part.data)));
}

}  // namespace

void sum_parts(const SumOfParts& a, Range elements) {
  const SumPart* parts = a.parts.data();
  const auto count = static_cast<std::int64_t>(a.parts.size());
  with_type(a.wire, [&]<typename Wire>() {
    with_type(a.out_type, [&]<typename T>() {
      T* out = reinterpret_cast<T*>(a.out) + elements.begin;
      for_vectors(
          elements.count(), [&](std::int64_t i, std::int64_t lanes) __attribute__((always_inline)) {
            const Vec sum = add_up(
                count, [&](std::int64_t p) __attribute__((always_inline)) {
                  return contribution<Wire>(parts[p], elements.begin + i, lanes);
                });
            store(out + i, a.write == Write::add ? load(out + i, lanes) + sum : sum, lanes);
          });
    });
  });
}

void sum_rows(const View& x, const View& out, Write write, Range columns) {
  with_type(x.type, [&]<typename T>() { sum_rows_of<T>(x, out, write, columns); });
}

void exact_sum(const View& x, ExactSum::Of of, Range elements, std::int64_t* words) {
  with_type(x.type, [&]<typename T>() {
    const T* from = row_of<T>(x, 0) + elements.begin;
    const std::int64_t n = elements.end - elements.begin;
    if (of == ExactSum::Of::values) {
      exact_sum_of<ExactSum::Of::values>(from, n, words);
    } else {
      exact_sum_of<ExactSum::Of::squares>(from, n, words);
    }
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
