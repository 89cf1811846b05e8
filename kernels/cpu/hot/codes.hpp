// Sixteen codes of 8, 4 bits or 1: between memory, bytes in a register, and floats.
#pragma once

#include "kernels/common/quantize.hpp"
#include "kernels/cpu/hot/vec.hpp"

namespace tessera::kernels::TESSERA_ISA {

using Bytes = std::int8_t __attribute__((vector_size(kLanes)));
using BytePairs = std::uint16_t __attribute__((vector_size(kLanes)));

/// The low bytes of what shifted_code() gives.
TESSERA_INLINE Bytes low_bytes(const Vec& shifted) {
#if defined(__AVX512F__)
  return (Bytes)_mm512_maskz_cvtepi32_epi8(kAllLanes, (__m512i)shifted.part[0]);
#else
  constexpr auto kZero = std::bit_cast<std::int32_t>(kRoundToInt);
  NativeInt codes[kParts];
  for (int i = 0; i < kParts; ++i) codes[i] = (NativeInt)shifted.part[i] - kZero;
#if defined(__SSE2__)
  __m128i q[4];
  std::memcpy(q, codes, sizeof(q));
  return (Bytes)_mm_packs_epi16(_mm_packs_epi32(q[0], q[1]), _mm_packs_epi32(q[2], q[3]));
#else
  Bytes bytes;
  for (int i = 0; i < kLanes; ++i)
    bytes[i] = static_cast<std::int8_t>(codes[i / kNative][i % kNative]);
  return bytes;
#endif
#endif
}

TESSERA_INLINE Vec numbers_of(const Bytes& bytes) {
  Vec v;
#if defined(__AVX512F__)
  v.part[0] =
      _mm512_maskz_cvtepi32_ps(kAllLanes, _mm512_maskz_cvtepi8_epi32(kAllLanes, (__m128i)bytes));
#elif defined(__AVX2__)
  const auto low = (__m128i)bytes;
  v.part[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low));
  v.part[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(low, 8)));
#elif defined(__SSE2__)
  const auto all = (__m128i)bytes;
  const __m128i low = _mm_unpacklo_epi8(all, all), high = _mm_unpackhi_epi8(all, all);
  const __m128i top[4] = {_mm_unpacklo_epi16(low, low), _mm_unpackhi_epi16(low, low),
                          _mm_unpacklo_epi16(high, high), _mm_unpackhi_epi16(high, high)};
  for (int i = 0; i < kParts; ++i) v.part[i] = _mm_cvtepi32_ps(_mm_srai_epi32(top[i], 24));
#else
  for (int i = 0; i < kLanes; ++i) v.part[i / kNative][i % kNative] = bytes[i];
#endif
  return v;
}

/// Sixteen codes of what shifted_code() gives, as halves of eight bytes, the first in the low half
/// of the first byte.
TESSERA_INLINE std::uint64_t to_halves(const Vec& shifted) {
#if defined(__AVX512F__)
  constexpr __mmask8 kAll = 0xff;
  const auto even = (__m512i)shifted.part[0];                       // and the odd ones above
  const __m512i odd = _mm512_maskz_srli_epi64(kAll, even, 32 - 4);  // where it belongs
  const __m512i both = _mm512_ternarylogic_epi64(_mm512_set1_epi64(0x0f), even, odd, 0xca);
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm512_maskz_cvtepi64_epi8(kAll, both)));
#else
  const BytePairs low = (BytePairs)low_bytes(shifted) & 0x0f0fU, both = (low | low >> 4) & 0xffU;
#if defined(__SSE2__)
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_packus_epi16((__m128i)both, __m128i{})));
#else
  std::uint64_t halves = 0;
  for (int i = 0; i < kLanes / 2; ++i) halves |= std::uint64_t{both[i]} << 8 * i;
  return halves;
#endif
#endif
}

/// What each half may stand for.
alignas(64) inline constexpr float kHalfIntegers[kLanes] = {0,  1,  2,  3,  4,  5,  6,  7,
                                                            -8, -7, -6, -5, -4, -3, -2, -1};
alignas(64) inline constexpr NormalFloats kHalfNormals = normal_floats();
template <BlockType kType>
inline constexpr const float* kHalfNumbers =
    kType == BlockType::nf4 ? kHalfNormals.of : kHalfIntegers;

/// The numbers in a table of sixteen that these sixteen halves, one a byte, are the places of.
TESSERA_INLINE Vec looked_up(const Bytes& halves, const float* table) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  Vec v;
  const __m256 first = _mm256_loadu_ps(table), second = _mm256_loadu_ps(table + 8);
  const auto low = (__m128i)halves;
  for (int i = 0; i < kParts; ++i) {
    const __m256i index = _mm256_cvtepu8_epi32(i == 0 ? low : _mm_srli_si128(low, 8));
    v.part[i] = _mm256_blendv_ps(_mm256_permutevar8x32_ps(first, index),
                                 _mm256_permutevar8x32_ps(second, index),
                                 _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
  }
  return v;
#else
  float numbers[kLanes];
  for (int i = 0; i < kLanes; ++i) numbers[i] = table[halves[i]];
  return load(numbers, kLanes);
#endif
}

#if defined(__AVX512F__)
/// Of sixteen halves, in the low 4 bits of each lane.
TESSERA_INLINE __m512i places_of_halves(std::uint64_t halves) {
  alignas(64) static constexpr std::int32_t kShifts[kLanes] = {0, 4, 0, 4, 0, 4, 0, 4,
                                                               0, 4, 0, 4, 0, 4, 0, 4};
  const __m512i each =
      _mm512_maskz_cvtepu8_epi64(0xff, _mm_cvtsi64_si128(static_cast<std::int64_t>(halves)));
  const __m512i twice =
      _mm512_maskz_shuffle_epi32(kAllLanes, each, static_cast<_MM_PERM_ENUM>(0xa0));
  return _mm512_maskz_srlv_epi32(kAllLanes, twice, _mm512_load_si512(kShifts));
}
#endif

/// The values of sixteen halves, of one scale.
template <BlockType kType>
TESSERA_INLINE Vec values_of_halves(std::uint64_t halves, const Vec& scale) {
#if defined(__AVX512F__)
  const Vec values = load(kHalfNumbers<kType>, kLanes) * scale;
  Vec v;
  v.part[0] = _mm512_maskz_permutexvar_ps(kAllLanes, places_of_halves(halves),
                                          values.part[0]);  // by 4 bits
  return v;
#else
#if defined(__SSE2__)
  const auto both =
      (BytePairs)_mm_unpacklo_epi8(_mm_cvtsi64_si128(static_cast<std::int64_t>(halves)), __m128i{});
#else
  BytePairs both;
  for (int i = 0; i < kLanes / 2; ++i) both[i] = halves >> 8 * i & 0xffU;
#endif
  const auto each = (Bytes)((both | both << 4) & 0x0f0fU);
  if constexpr (kType == BlockType::nf4) return looked_up(each, kHalfNormals.of) * scale;
  return numbers_of((each ^ 8) - 8) * scale;
#endif
}

/// What numbers become in another type. Their not-a-numbers are those of scales that kernels or the
/// host have made, of which no bit carries when they are rounded.
template <typename T>
TESSERA_INLINE Vec rounded_values(const Vec& v) {
  if constexpr (!std::is_same_v<T, bf16>) return rounded_to<T>(v);
  Vec r;
  for (int i = 0; i < kParts; ++i) {
    const auto u = (NativeUint)v.part[i];
    r.part[i] = (NativeFloat)((u + 0x7fffU + ((u >> 16) & 1U)) & 0xffff0000U);
  }
  return r;
}

/// Stores sixteen numbers that T has.
template <typename T>
TESSERA_INLINE void store_values(T* p, const Vec& v) {
  if constexpr (!std::is_same_v<T, bf16>) return store(p, v, kLanes);
  for (int i = 0; i < kParts; ++i) {
    const NativeUint bits = (NativeUint)v.part[i] >> 16;
    const auto h = __builtin_convertvector(bits, NativeHalf);
    std::memcpy(static_cast<void*>(p + i * kNative), &h, sizeof(h));
  }
}

/// The values of a block's codes, rounded to T.
template <BlockType kType, typename T>
class BlockValues {
 public:
  TESSERA_INLINE explicit BlockValues(float scale) : scale_(scale) {
    if constexpr (kTable) scale_ = rounded_values<T>(load(kHalfNumbers<kType>, kLanes) * scale_);
  }

  /// Of sixteen codes from here on.
  TESSERA_INLINE Vec at(const std::byte* codes) const {
    if constexpr (kBitsOf<kType> == 8) {
      Bytes bytes;
      std::memcpy(&bytes, codes, sizeof(bytes));
      return rounded_values<T>(numbers_of(bytes) * scale_);
    } else {
      std::uint64_t halves = 0;
      std::memcpy(&halves, codes, sizeof(halves));
#if defined(__AVX512F__)
      Vec v;
      v.part[0] = _mm512_maskz_permutexvar_ps(kAllLanes, places_of_halves(halves), scale_.part[0]);
      return v;
#else
      return rounded_values<T>(values_of_halves<kType>(halves, scale_));
#endif
    }
  }

 private:
#if defined(__AVX512F__)
  static constexpr bool kTable = kBitsOf<kType> == 4;
#else
  static constexpr bool kTable = false;
#endif
  Vec scale_;  // or what each half stands for
};

/// The signs of sixteen floats, the first in the lowest bit.
TESSERA_INLINE std::uint16_t sign_bits(const Vec& v) {
#if defined(__AVX512DQ__)
  return _mm512_movepi32_mask((__m512i)v.part[0]);
#else
  std::uint32_t bits = 0;
  for (int i = 0; i < kParts; ++i) {
#if defined(__AVX2__)
    const auto part = static_cast<std::uint32_t>(_mm256_movemask_ps(v.part[i]));
#elif defined(__SSE2__)
    const auto part = static_cast<std::uint32_t>(_mm_movemask_ps(v.part[i]));
#else
    std::uint32_t part = 0;
    for (int j = 0; j < kNative; ++j) part |= ((NativeUint)v.part[i])[j] >> 31 << j;
#endif
    bits |= part << i * kNative;
  }
  return static_cast<std::uint16_t>(bits);
#endif
}

/// The bit of each lane.
alignas(64) inline constexpr std::uint32_t kLaneBits[kLanes] = {
    1U << 0, 1U << 1, 1U << 2,  1U << 3,  1U << 4,  1U << 5,  1U << 6,  1U << 7,
    1U << 8, 1U << 9, 1U << 10, 1U << 11, 1U << 12, 1U << 13, 1U << 14, 1U << 15};

/// A scale with each of these signs.
TESSERA_INLINE Vec with_signs(const Vec& positive, std::uint16_t bits) {
  Vec r;
#if defined(__AVX512F__)
  const auto negative = (NativeFloat)((NativeUint)positive.part[0] ^ 0x80000000U);
  r.part[0] = _mm512_mask_blend_ps(bits, positive.part[0], negative);
#else
  for (int i = 0; i < kParts; ++i) {
    NativeUint lane;
    std::memcpy(&lane, kLaneBits + i * kNative, sizeof(lane));
    const auto is_set = (NativeUint)((lane & static_cast<std::uint32_t>(bits)) == lane);
    r.part[i] = (NativeFloat)((NativeUint)positive.part[i] ^ (is_set & 0x80000000U));
  }
#endif
  return r;
}

/// The sum of the codes that shifted_code() gives.
struct CodeSum {
  NativeUint part[kParts] = {};  // of the bits of all, modulo 2^32
  std::uint32_t taken = 0;

  TESSERA_INLINE void take(const Vec& shifted) {
    for (int p = 0; p < kParts; ++p) part[p] += (NativeUint)shifted.part[p];
    taken += kLanes;
  }
  TESSERA_INLINE std::int32_t total() const {
    std::uint32_t sum = 0;
    for (const NativeUint& lanes : part) {
      for (int i = 0; i < kNative; ++i) sum += lanes[i];
    }
    return static_cast<std::int32_t>(sum - taken * std::bit_cast<std::uint32_t>(kRoundToInt));
  }
};

/// How many bytes n codes take.
template <int kBits>
TESSERA_INLINE std::int64_t code_bytes(std::int64_t n) {
  return (n * kBits + 7) / 8;
}

/// The signs of `count` elements; bits beyond are 0 where the elements beyond are.
TESSERA_INLINE void store_signs(std::byte* p, const Vec& v, std::int64_t count) {
  const std::uint16_t bits = sign_bits(v);
  std::memcpy(p, &bits, static_cast<std::size_t>(code_bytes<1>(count)));
}

/// The signs of a register of bf16.
TESSERA_INLINE void store_signs(std::byte* p, const NativePairs& v) {
#if defined(__AVX512BW__)
  const std::uint32_t bits = _mm512_movepi16_mask((__m512i)v);
  std::memcpy(p, &bits, sizeof(bits));
#elif defined(__SSE2__)
  __m128i half[2] = {};
  std::memcpy(half, &v, sizeof(v));
  const int bits = _mm_movemask_epi8(_mm_packs_epi16(half[0], half[1]));
  std::memcpy(p, &bits, 2 * kNative / 8);
#else
  for (int i = 0; i < 2 * kNative; i += 8) {
    unsigned bits = 0;
    for (int j = 0; j < 8; ++j) bits |= (v[i + j] < 0 ? 1U : 0U) << j;
    p[i / 8] = static_cast<std::byte>(bits);
  }
#endif
}

/// The codes of `count` elements; a half byte beyond is 0 where the element beyond is.
template <int kBits>
TESSERA_INLINE void store_codes(std::byte* p, const Vec& shifted, std::int64_t count) {
  if constexpr (kBits == 8) {
    const Bytes bytes = low_bytes(shifted);
    std::memcpy(p, &bytes, static_cast<std::size_t>(count));
  } else {
    const std::uint64_t halves = to_halves(shifted);
    std::memcpy(p, &halves, static_cast<std::size_t>(code_bytes<4>(count)));
  }
}

/// The values of `count` codes; lanes beyond are of no meaning.
template <BlockType kType>
TESSERA_INLINE Vec load_values(const std::byte* p, const Vec& scale, std::int64_t count) {
  constexpr int kBits = kBitsOf<kType>;
  if constexpr (kBits == 8) {
    Bytes bytes{};
    std::memcpy(&bytes, p, static_cast<std::size_t>(count));
    return numbers_of(bytes) * scale;
  } else if constexpr (kBits == 4) {
    std::uint64_t halves = 0;
    std::memcpy(&halves, p, static_cast<std::size_t>(code_bytes<4>(count)));
    return values_of_halves<kType>(halves, scale);
  } else {
    std::uint16_t bits = 0;
    std::memcpy(&bits, p, static_cast<std::size_t>(code_bytes<1>(count)));
    return with_signs(scale, bits);
  }
}

}  // namespace tessera::kernels::TESSERA_ISA
