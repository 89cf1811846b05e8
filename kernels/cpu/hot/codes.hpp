// Sixteen codes of 8 or 4 bits: between memory, bytes in a register, and floats.
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

/// Sixteen bytes' low halves in eight bytes, and back with their signs.
TESSERA_INLINE std::uint64_t to_halves(const Bytes& bytes) {
  const BytePairs low = (BytePairs)bytes & 0x0f0fU, both = (low | low >> 4) & 0xffU;
#if defined(__SSE2__)
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_packus_epi16((__m128i)both, __m128i{})));
#else
  std::uint64_t halves = 0;
  for (int i = 0; i < kLanes / 2; ++i) halves |= std::uint64_t{both[i]} << 8 * i;
  return halves;
#endif
}
TESSERA_INLINE Bytes from_halves(std::uint64_t halves) {
#if defined(__SSE2__)
  const auto both =
      (BytePairs)_mm_unpacklo_epi8(_mm_cvtsi64_si128(static_cast<std::int64_t>(halves)), __m128i{});
#else
  BytePairs both;
  for (int i = 0; i < kLanes / 2; ++i) both[i] = halves >> 8 * i & 0xffU;
#endif
  return ((Bytes)((both | both << 4) & 0x0f0fU) ^ 8) - 8;
}

/// How many bytes n codes take.
template <int kBits>
TESSERA_INLINE std::int64_t code_bytes(std::int64_t n) {
  return (n * kBits + 7) / 8;
}

/// The codes of `count` elements; a half byte beyond is 0 where the element beyond is.
template <int kBits>
TESSERA_INLINE void store_codes(std::byte* p, const Vec& shifted, std::int64_t count) {
  const Bytes bytes = low_bytes(shifted);
  if constexpr (kBits == 8) {
    std::memcpy(p, &bytes, static_cast<std::size_t>(count));
  } else {
    const std::uint64_t halves = to_halves(bytes);
    std::memcpy(p, &halves, static_cast<std::size_t>(code_bytes<4>(count)));
  }
}

/// The numbers of `count` codes; lanes beyond are of no meaning.
template <int kBits>
TESSERA_INLINE Vec load_codes(const std::byte* p, std::int64_t count) {
  if constexpr (kBits == 8) {
    Bytes bytes{};
    std::memcpy(&bytes, p, static_cast<std::size_t>(count));
    return numbers_of(bytes);
  } else {
    std::uint64_t halves = 0;
    std::memcpy(&halves, p, static_cast<std::size_t>(code_bytes<4>(count)));
    return numbers_of(from_halves(halves));
  }
}

}  // namespace tessera::kernels::TESSERA_ISA
