// Sixteen floats, whatever the instruction set: one register of AVX-512, two of AVX2, four of SSE.
// Sums over lanes have one fixed shape, so instruction sets with fused multiply-add agree to the
// bit. Loops run over whole vectors. A tail is padded to a vector and goes through the same
// instructions, so that an element has the same bits wherever a shard begins.
//
// Everything here lives in a namespace of the instruction set that the file is compiled for, or is
// always inlined: no function compiled for one may be linked into another.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "core/dtype.hpp"
#include "core/math.hpp"
#include "core/view.hpp"
#include "kernels/common/math.hpp"
#include "kernels/common/types.hpp"

namespace tessera::kernels::TESSERA_ISA {

#if defined(__AVX512F__)
inline constexpr int kNative = 16;
#elif defined(__AVX2__)
inline constexpr int kNative = 8;
#else
inline constexpr int kNative = 4;
#endif
#ifdef __AVX512F__
inline constexpr __mmask16 kAllLanes = 0xffff;  // masked forms: GCC 12 warns about the others
#endif
inline constexpr int kLanes = 16;
inline constexpr int kParts = kLanes / kNative;

using NativeFloat = float __attribute__((vector_size(4 * kNative)));
using NativeInt = std::int32_t __attribute__((vector_size(4 * kNative)));
using NativeUint = std::uint32_t __attribute__((vector_size(4 * kNative)));
using NativeHalf = std::uint16_t __attribute__((vector_size(2 * kNative)));
using NativePairs = std::int16_t __attribute__((vector_size(4 * kNative)));

struct Mask {
  NativeInt part[kParts];
};

struct Vec {
  NativeFloat part[kParts];

  Vec() = default;
  TESSERA_INLINE explicit Vec(float value) {
    for (auto& p : part) p = value - NativeFloat{};
  }
};

#define TESSERA_VEC_OPERATOR(op, Result)                                 \
  TESSERA_INLINE Result operator op(const Vec& a, const Vec& b) {        \
    Result r;                                                            \
    for (int i = 0; i < kParts; ++i) r.part[i] = a.part[i] op b.part[i]; \
    return r;                                                            \
  }
TESSERA_VEC_OPERATOR(+, Vec)
TESSERA_VEC_OPERATOR(-, Vec)
TESSERA_VEC_OPERATOR(*, Vec)
TESSERA_VEC_OPERATOR(/, Vec)
TESSERA_VEC_OPERATOR(<, Mask)
TESSERA_VEC_OPERATOR(>, Mask)
#undef TESSERA_VEC_OPERATOR

TESSERA_INLINE Vec select(const Mask& take_a, const Vec& a, const Vec& b) {
  Vec r;
  for (int i = 0; i < kParts; ++i) r.part[i] = take_a.part[i] ? a.part[i] : b.part[i];
  return r;
}
#if defined(__AVX512F__)
#define TESSERA_VEC_EXTREME(name, op, of_register)                           \
  TESSERA_INLINE Vec name(const Vec& a, const Vec& b) {                      \
    Vec r;                                                                   \
    r.part[0] = _mm512_maskz_##of_register(kAllLanes, a.part[0], b.part[0]); \
    return r;                                                                \
  }
#elif defined(__AVX2__)
#define TESSERA_VEC_EXTREME(name, op, of_register)                                           \
  TESSERA_INLINE Vec name(const Vec& a, const Vec& b) {                                      \
    Vec r;                                                                                   \
    for (int i = 0; i < kParts; ++i) r.part[i] = _mm256_##of_register(a.part[i], b.part[i]); \
    return r;                                                                                \
  }
#else
#define TESSERA_VEC_EXTREME(name, op, of_register) \
  TESSERA_INLINE Vec name(const Vec& a, const Vec& b) { return select(a op b, a, b); }
#endif
/// a > b ? a : b, and a < b ? a : b: of what is no number, b.
TESSERA_VEC_EXTREME(larger, >, max_ps)
TESSERA_VEC_EXTREME(smaller, <, min_ps)
#undef TESSERA_VEC_EXTREME

TESSERA_INLINE NativeFloat fmadd_native(const NativeFloat& a, const NativeFloat& b,
                                        const NativeFloat& c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
TESSERA_INLINE Vec fmadd(const Vec& a, const Vec& b, const Vec& c) {
  Vec r;
  for (int i = 0; i < kParts; ++i) r.part[i] = fmadd_native(a.part[i], b.part[i], c.part[i]);
  return r;
}

TESSERA_INLINE Vec sqrt(const Vec& a) {
  Vec r;
  for (int i = 0; i < kParts; ++i) {
#if defined(__AVX512F__)
    r.part[i] = _mm512_maskz_sqrt_ps(kAllLanes, a.part[i]);
#elif defined(__AVX2__)
    r.part[i] = _mm256_sqrt_ps(a.part[i]);
#else
    for (int j = 0; j < kNative; ++j) r.part[i][j] = __builtin_sqrtf(a.part[i][j]);
#endif
  }
  return r;
}

TESSERA_INLINE Vec power_of_two(const Vec& n) {
  const Vec shifted = n + Vec(kRoundToInt);
  Vec r;
  for (int i = 0; i < kParts; ++i) {
    const auto bits = (NativeUint)shifted.part[i];
    r.part[i] = (NativeFloat)((bits << 23) + 0x3f800000U);
  }
  return r;
}

#ifdef __AVX512F__
TESSERA_INLINE Vec times_power_of_two(const Vec& x, const Vec& n) {
  Vec r;
  r.part[0] = _mm512_maskz_scalef_ps(kAllLanes, x.part[0], n.part[0]);
  return r;
}
#endif

TESSERA_INLINE Vec rounded_at_random(const Vec& x, const Vec& key, std::uint32_t salt) {
  Vec r;
  for (int i = 0; i < kParts; ++i) {
    const NativeUint bits =
        bits_rounded_at_random((NativeUint)x.part[i], (NativeUint)key.part[i], salt);
    r.part[i] = x.part[i] != x.part[i] ? x.part[i] : (NativeFloat)bits;
  }
  return r;
}

TESSERA_INLINE Vec power_of(const Vec& v) {
  Vec r;
  for (int i = 0; i < kParts; ++i) r.part[i] = (NativeFloat)((NativeUint)v.part[i] & 0x7f800000U);
  return r;
}

TESSERA_INLINE Vec magnitude_of(const Vec& v) {
  Vec r;
  for (int i = 0; i < kParts; ++i) r.part[i] = (NativeFloat)((NativeUint)v.part[i] & 0x7fffffffU);
  return r;
}

/// A magnitude with the sign of x.
TESSERA_INLINE Vec signed_like(const Vec& magnitude, const Vec& x) {
  Vec r;
  for (int i = 0; i < kParts; ++i) {
    r.part[i] =
        (NativeFloat)((NativeUint)magnitude.part[i] | ((NativeUint)x.part[i] & 0x80000000U));
  }
  return r;
}

/// The bits of the largest |x| of all that was taken: they order like magnitudes, then infinity,
/// then not-a-numbers.
struct LargestMagnitude {
  NativeInt part[kParts] = {};

  TESSERA_INLINE void take(const Vec& v) {
    for (int p = 0; p < kParts; ++p) {
      const NativeInt bits = (NativeInt)v.part[p] & 0x7fffffff;
      part[p] = bits > part[p] ? bits : part[p];
    }
  }
  /// The magnitudes of bf16 as they lie in memory, without signs.
  TESSERA_INLINE void take(const NativePairs& magnitudes) {
    const auto both = (NativeInt)magnitudes;
    for (const NativeInt& of : {both << 16, both & 0x7fff0000})
      part[0] = of > part[0] ? of : part[0];
  }
  TESSERA_INLINE std::int32_t bits() const {
    std::int32_t most = 0;
    for (const NativeInt& lanes : part) {
      for (int i = 0; i < kNative; ++i) most = lanes[i] > most ? lanes[i] : most;
    }
    return most;
  }
};

/// The bits of the smallest |x| of all that was taken and is not 0, those of a not-a-number if
/// there is none.
struct SmallestMagnitude {
  NativeUint part[kParts];  // less 1, so that 0 counts as the largest

  SmallestMagnitude() {
    for (auto& p : part) p = ~NativeUint{};
  }
  TESSERA_INLINE void take(const Vec& v) {
    for (int p = 0; p < kParts; ++p) {
      const NativeUint below = ((NativeUint)v.part[p] & 0x7fffffffU) - 1U;
      part[p] = below < part[p] ? below : part[p];
    }
  }
  TESSERA_INLINE std::int32_t bits() const {
    std::uint32_t least = 0x7ffffffeU;
    for (const NativeUint& lanes : part) {
      for (int i = 0; i < kNative; ++i) least = lanes[i] < least ? lanes[i] : least;
    }
    return static_cast<std::int32_t>(least + 1U);
  }
};

/// Lane i ^ half of v in lane i.
template <int half, int... lane>
TESSERA_INLINE NativeFloat exchanged_lanes(const NativeFloat& v,
                                           std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(v, v, (lane ^ half)...);
}
/// Lanes of one register combined by halves: lane i with lane i + half, and so on down to the
/// first.
template <int half, typename Combine>
TESSERA_INLINE float fold_register(const NativeFloat& v, Combine combine) {
  if constexpr (half == 0) return v[0];
  if constexpr (half > 0) {
    const auto lanes = std::make_integer_sequence<int, kNative>();
    return fold_register<half / 2>(combine(v, exchanged_lanes<half>(v, lanes)), combine);
  }
}
/// All lanes combined by halves (lane i with lane i + 8, then 4, 2, 1): the same tree in parts of
/// any size.
template <typename Combine>
TESSERA_INLINE float fold_lanes(const Vec& v, Combine combine) {
  NativeFloat part[kParts];
  for (int i = 0; i < kParts; ++i) part[i] = v.part[i];
  for (int parts = kParts / 2; parts > 0; parts /= 2) {
    for (int i = 0; i < parts; ++i) part[i] = combine(part[i], part[i + parts]);
  }
  return fold_register<kNative / 2>(part[0], combine);
}
TESSERA_INLINE float sum_of(const Vec& v) {
  return fold_lanes(v, [](const NativeFloat& a, const NativeFloat& b) { return a + b; });
}
TESSERA_INLINE float max_of(const Vec& v) {
  return fold_lanes(v, [](const NativeFloat& a, const NativeFloat& b) { return a > b ? a : b; });
}

// One register's worth of each element type. 16-bit results are rounded to nearest even; NaN stays.
TESSERA_INLINE NativeFloat load_native(const float* p) {
  NativeFloat v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
TESSERA_INLINE NativeFloat load_native(const bf16* p) {
  NativeHalf h;
  std::memcpy(&h, p, sizeof(h));
#ifdef __AVX512F__  // GCC 12 would take four instructions
  const auto wide = (NativeUint)_mm512_maskz_cvtepu16_epi32(kAllLanes, (__m256i)h);
#else
  const auto wide = __builtin_convertvector(h, NativeUint);
#endif
  return (NativeFloat)(wide << 16);
}
TESSERA_INLINE NativeFloat load_native(const f16* p) {
  NativeHalf h;
  std::memcpy(&h, p, sizeof(h));
#if defined(__AVX512F__)
  return _mm512_maskz_cvtph_ps(kAllLanes, (__m256i)h);
#elif defined(__F16C__)
  return _mm256_cvtph_ps((__m128i)h);
#else
  const NativeUint bits = __builtin_convertvector(h, NativeUint);
  const auto scaled = (NativeFloat)((bits & 0x7fffU) << 13) * 0x1p112F;  // denormals come right too
  const auto infinite = (NativeUint)(scaled >= 65536.0F) & 0x7f800000U;
  return (NativeFloat)((NativeUint)scaled | infinite | ((bits & 0x8000U) << 16));
#endif
}

TESSERA_INLINE void store_native(float* p, NativeFloat v) { std::memcpy(p, &v, sizeof(v)); }
TESSERA_INLINE void store_native(bf16* p, NativeFloat v) {
  const auto u = (NativeUint)v;
  const NativeUint rounded = u + 0x7fffU + ((u >> 16) & 1U);
  const NativeUint bits = (v != v ? (u | 0x400000U) : rounded) >> 16;
  const auto h = __builtin_convertvector(bits, NativeHalf);
  std::memcpy(static_cast<void*>(p), &h, sizeof(h));
}
TESSERA_INLINE void store_native(f16* p, NativeFloat v) {
#if defined(__AVX512F__)
  const __m256i h = _mm512_maskz_cvtps_ph(kAllLanes, v, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
  const __m128i h = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
#else
  f16 h[kNative];
  for (int i = 0; i < kNative; ++i) h[i] = f16(v[i]);
#endif
  std::memcpy(static_cast<void*>(p), &h, sizeof(h));
}

/// `count` elements (0 < count <= 16); lanes beyond are 0.
template <typename T>
TESSERA_INLINE Vec load(const T* p, std::int64_t count) {
  T padded[kLanes];
  if (count < kLanes) {
    std::memset(static_cast<void*>(padded), 0, sizeof(padded));
    std::memcpy(static_cast<void*>(padded), p, static_cast<std::size_t>(count) * sizeof(T));
    p = padded;
  }
  Vec v;
  for (int i = 0; i < kParts; ++i) v.part[i] = load_native(p + i * kNative);
  return v;
}
template <typename T>
TESSERA_INLINE void store(T* p, const Vec& v, std::int64_t count) {
  T padded[kLanes];
  T* to = count < kLanes ? padded : p;
  for (int i = 0; i < kParts; ++i) store_native(to + i * kNative, v.part[i]);
  if (count < kLanes)
    std::memcpy(static_cast<void*>(p), padded, static_cast<std::size_t>(count) * sizeof(T));
}

/// Whether so much is written that a second-level cache does not hold it.
TESSERA_INLINE constexpr bool exceeds_caches(std::int64_t bytes) {
  return bytes > std::int64_t{2} << 20;
}

/// Whether p lies on a boundary of so many bytes, a power of two.
TESSERA_INLINE bool lies_on(const void* p, std::size_t bytes) {
  return (reinterpret_cast<std::uintptr_t>(p) & (bytes - 1)) == 0;
}

/// Writes 64 or 32 bytes past the caches.
template <std::size_t kBytes>
TESSERA_INLINE void stream(void* to, const void* from) {
#if defined(__AVX512F__)
  if constexpr (kBytes == 64)
    return _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_loadu_si512(from));
#endif
#if defined(__AVX2__)
  const auto* piece = static_cast<const __m256i*>(from);
  for (std::size_t i = 0; i < kBytes / sizeof(__m256i); ++i)
    _mm256_stream_si256(static_cast<__m256i*>(to) + i, _mm256_loadu_si256(piece + i));
#elif defined(__SSE2__)
  const auto* piece = static_cast<const __m128i*>(from);
  for (std::size_t i = 0; i < kBytes / sizeof(__m128i); ++i)
    _mm_stream_si128(static_cast<__m128i*>(to) + i, _mm_loadu_si128(piece + i));
#else
  std::memcpy(to, from, kBytes);
#endif
}

/// As store(), but past the caches, which would read a line before it is written: for much that is
/// not read soon. Other threads may read it after settle_stores(). What does not begin on the size
/// of a vector is stored as above.
template <typename T>
TESSERA_INLINE void store_past_caches(T* p, const Vec& v, std::int64_t count) {
  constexpr std::size_t kBytes = kLanes * sizeof(T);
  if (count < kLanes || !lies_on(p, kBytes)) return store(p, v, count);
  alignas(64) T lane[kLanes];
  store(lane, v, kLanes);
  stream<kBytes>(p, lane);
}
TESSERA_INLINE void settle_stores() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

/// What `v` becomes when it is written as a T and read back.
template <typename T>
TESSERA_INLINE Vec rounded_to(const Vec& v) {
  T lane[kLanes];
  store(lane, v, kLanes);
  return load(lane, kLanes);
}
template <>
TESSERA_INLINE Vec rounded_to<float>(const Vec& v) {
  return v;
}

/// `v` with the lanes from `count` on set to 0.
TESSERA_INLINE Vec first_lanes(const Vec& v, std::int64_t count) {
  if (count >= kLanes) return v;
  float lane[kLanes];
  std::memcpy(lane, &v, sizeof(lane));
  for (std::int64_t i = count; i < kLanes; ++i) lane[i] = 0;
  return load(lane, kLanes);
}

/// 32 elements in order become those of even places, then those of odd ones; and back.
TESSERA_INLINE void split_pairs(Vec& low, Vec& high) {
  float all[2 * kLanes], even[kLanes], odd[kLanes];
  store(all, low, kLanes);
  store(all + kLanes, high, kLanes);
  for (int i = 0; i < kLanes; ++i) even[i] = all[2 * i], odd[i] = all[2 * i + 1];
  low = load(even, kLanes), high = load(odd, kLanes);
}
TESSERA_INLINE void join_pairs(Vec& even, Vec& odd) {
  float all[2 * kLanes], of_even[kLanes], of_odd[kLanes];
  store(of_even, even, kLanes);
  store(of_odd, odd, kLanes);
  for (int i = 0; i < kLanes; ++i) all[2 * i] = of_even[i], all[2 * i + 1] = of_odd[i];
  even = load(all, kLanes), odd = load(all + kLanes, kLanes);
}

/// Four vectors side by side: chains of operations of which a processor has several under way.
struct Vecs {
  static constexpr int kCount = 4;
  static constexpr std::int64_t kAll = kCount * kLanes;
  Vec of[kCount];

  Vecs() = default;
  TESSERA_INLINE explicit Vecs(float value) {
    for (Vec& v : of) v = Vec(value);
  }
};
struct Masks {
  Mask of[Vecs::kCount];
};
#define TESSERA_OF_EACH(Result, function, expression)            \
  TESSERA_INLINE Result function {                               \
    Result r;                                                    \
    for (int i = 0; i < Vecs::kCount; ++i) r.of[i] = expression; \
    return r;                                                    \
  }
TESSERA_OF_EACH(Vecs, operator+(const Vecs& a, const Vecs& b), a.of[i] + b.of[i])
TESSERA_OF_EACH(Vecs, operator-(const Vecs& a, const Vecs& b), a.of[i] - b.of[i])
TESSERA_OF_EACH(Vecs, operator*(const Vecs& a, const Vecs& b), a.of[i] * b.of[i])
TESSERA_OF_EACH(Vecs, operator/(const Vecs& a, const Vecs& b), a.of[i] / b.of[i])
TESSERA_OF_EACH(Masks, operator<(const Vecs& a, const Vecs& b), a.of[i] < b.of[i])
TESSERA_OF_EACH(Masks, operator>(const Vecs& a, const Vecs& b), a.of[i] > b.of[i])
TESSERA_OF_EACH(Vecs, select(const Masks& take_a, const Vecs& a, const Vecs& b),
                select(take_a.of[i], a.of[i], b.of[i]))
TESSERA_OF_EACH(Vecs, larger(const Vecs& a, const Vecs& b), larger(a.of[i], b.of[i]))
TESSERA_OF_EACH(Vecs, smaller(const Vecs& a, const Vecs& b), smaller(a.of[i], b.of[i]))
TESSERA_OF_EACH(Vecs, fmadd(const Vecs& a, const Vecs& b, const Vecs& c),
                fmadd(a.of[i], b.of[i], c.of[i]))
TESSERA_OF_EACH(Vecs, power_of_two(const Vecs& n), power_of_two(n.of[i]))
#ifdef __AVX512F__
TESSERA_OF_EACH(Vecs, times_power_of_two(const Vecs& x, const Vecs& n),
                times_power_of_two(x.of[i], n.of[i]))
#endif
#undef TESSERA_OF_EACH

/// `Vecs::kAll` elements.
template <typename T>
TESSERA_INLINE Vecs load_all(const T* from) {
  Vecs r;
  for (int i = 0; i < Vecs::kCount; ++i) r.of[i] = load(from + i * kLanes, kLanes);
  return r;
}
template <typename T>
TESSERA_INLINE void store_all(T* to, const Vecs& x) {
  for (int i = 0; i < Vecs::kCount; ++i) store(to + i * kLanes, x.of[i], kLanes);
}

TESSERA_INLINE constexpr std::int64_t at_most(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
TESSERA_INLINE constexpr std::int64_t at_least(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}

/// body(i, count) over [0, n): whole vectors, then the tail.
template <typename Body>
TESSERA_INLINE void for_vectors(std::int64_t n, Body&& body) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, std::int64_t{kLanes});
  if (i < n) body(i, n - i);
}

/// many(i) over [0, n) as long as there are Vecs::kAll, then one(i, count) as above.
template <typename Many, typename One>
TESSERA_INLINE void for_groups(std::int64_t n, Many&& many, One&& one) {
  std::int64_t i = 0;
  for (; i + Vecs::kAll <= n; i += Vecs::kAll) many(i);
  for_vectors(
      n - i, [&](std::int64_t j, std::int64_t count)
                 __attribute__((always_inline)) { one(i + j, count); });
}

/// Row r of a view whose leading axes are merged.
template <typename T>
TESSERA_INLINE T* row_of(const View& v, std::int64_t r) {
  return reinterpret_cast<T*>(v.data) + r * v.ld;
}
TESSERA_INLINE std::int64_t columns_of(const View& v) {
  return v.shape[static_cast<std::size_t>(v.rank - 1)];
}
/// Of all leading axes.
TESSERA_INLINE std::int64_t row_count(const View& v) {
  std::int64_t n = 1;
  for (int i = 0; i + 1 < v.rank; ++i) n *= v.shape[static_cast<std::size_t>(i)];
  return n;
}

}  // namespace tessera::kernels::TESSERA_ISA
