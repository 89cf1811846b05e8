// Dropout factors for a run of elements: core/random.hpp's numbers, sixteen counters at a time.
#pragma once

#include "kernels/common/dropout.hpp"
#include "kernels/cpu/hot/vec.hpp"

namespace tessera::kernels::TESSERA_ISA {

// 64-bit lanes whose low halves hold the numbers: the product of low halves is one instruction.
using Wide = std::uint64_t __attribute__((vector_size(4 * kNative)));
inline constexpr int kWideLanes = kNative / 2;

TESSERA_INLINE Wide low_product(const Wide& a, const Wide& b) {
#if defined(__AVX512F__)
  return (Wide)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Wide)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (Wide)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
  return (a & 0xffffffffU) * (b & 0xffffffffU);
#endif
}

/// Lanes of a and b by turns, from lane `kFirst` on: as many as a vector has.
template <int kFirst, int... kLane>
TESSERA_INLINE Wide by_turns(const Wide& a, const Wide& b, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(a, b, (kFirst + kLane / 2 + kLane % 2 * kWideLanes)...);
}

/// random_bits(key, stream, 4 block + i) for i in [0, 64).
TESSERA_INLINE void philox_block(RandomKey key, std::uint64_t stream, std::uint64_t block,
                                 std::uint32_t* out) {
  constexpr int kGroups = kLanes / kWideLanes;
  Wide c0[kGroups], c1[kGroups], c2[kGroups], c3[kGroups];
  for (int g = 0; g < kGroups; ++g) {
    std::uint64_t lane[kWideLanes];
    for (int j = 0; j < kWideLanes; ++j) {
      lane[j] = block + static_cast<std::uint64_t>(g * kWideLanes + j);
    }
    std::memcpy(&c0[g], lane, sizeof(lane));
    c1[g] = c0[g] >> 32;
    c2[g] = stream - Wide{};
    c3[g] = c2[g] >> 32;
  }
  for (int round = 0; round < 10; ++round) {
    for (int g = 0; g < kGroups; ++g) {
      const Wide p0 = low_product(c0[g], 0xD2511F53U - Wide{});
      const Wide p1 = low_product(c2[g], 0xCD9E8D57U - Wide{});
      c0[g] = (p1 >> 32) ^ c1[g] ^ std::uint64_t{key.k0};
      c1[g] = p1;  // upper halves are never looked at
      c2[g] = (p0 >> 32) ^ c3[g] ^ std::uint64_t{key.k1};
      c3[g] = p0;
    }
    key.k0 += 0x9E3779B9U;
    key.k1 += 0xBB67AE85U;
  }
  for (int g = 0; g < kGroups; ++g) {  // little-endian: (c0, c1), (c2, c3) as pairs of numbers
    const Wide low = (c0[g] & 0xffffffffU) | (c1[g] << 32);
    const Wide high = (c2[g] & 0xffffffffU) | (c3[g] << 32);
    constexpr std::make_integer_sequence<int, kWideLanes> kAll{};
    const Wide four[2] = {by_turns<0>(low, high, kAll), by_turns<kWideLanes / 2>(low, high, kAll)};
    std::memcpy(out + 4 * g * kWideLanes, four, sizeof(four));
  }
}

/// f(i, number) for the numbers first + i of a stream, i in [0, n), in order, of which a block of
/// Philox, 16 bytes, has as many as there are Words in it: random_bits, or random_half.
template <typename Word, typename F>
TESSERA_INLINE void for_random(RandomKey key, std::uint64_t stream, std::int64_t first,
                               std::int64_t n, F&& f) {
  constexpr std::int64_t kOfBlock = 16 / sizeof(Word), kAll = kOfBlock * kLanes;
  std::uint32_t bits[4 * kLanes];
  Word words[kAll];
  for (std::int64_t i = 0; i < n;) {
    const std::int64_t element = first + i, skip = element % kOfBlock;
    philox_block(key, stream, static_cast<std::uint64_t>(element / kOfBlock), bits);
    std::memcpy(words, bits, sizeof(words));
    const std::int64_t count = n - i < kAll - skip ? n - i : kAll - skip;
    for (std::int64_t j = 0; j < count; ++j) f(i + j, words[skip + j]);
    i += count;
  }
}
template <typename F>
TESSERA_INLINE void for_random_bits(RandomKey key, std::uint64_t stream, std::int64_t first,
                                    std::int64_t n, F&& f) {
  for_random<std::uint32_t>(key, stream, first, n, f);
}

/// factors[i] = the rule's factor for elements first .. first + n of the view of a sample.
inline void dropout_factors(const DropoutRule& rule, std::uint64_t sample, std::int64_t first,
                            std::int64_t n, float* factors) {
  if (rule.spread > 0) {
    for_random_bits(
        rule.key, sample, rule.first + first, n,
        [=](std::int64_t i, std::uint32_t bits) { factors[i] = jitter_of(rule, bits); });
  } else {
    const std::uint32_t threshold = rule.threshold;  // copies: stores may be to the rule's fields
    const float factor = rule.factor;
    for_random<std::uint16_t>(rule.key, sample, rule.first + first, n,
                              [=](std::int64_t i, std::uint16_t half) {
                                factors[i] = half >= threshold ? factor : 0.0F;
                              });
  }
}

/// Row r of a (B, T, C) tensor under dropout, in pieces whose factors fit the stack:
/// body(first column, factors, count).
inline constexpr std::int64_t kDropoutPiece = 512;
template <typename Body>
TESSERA_INLINE void for_dropout_pieces(const Dropout& dropout, const DropoutRule& rule,
                                       std::int64_t row, std::int64_t tokens, std::int64_t columns,
                                       Body&& body) {
  float factors[kDropoutPiece];
  const std::int64_t* samples = reinterpret_cast<const std::int64_t*>(dropout.samples.data);
  for (std::int64_t c = 0; c < columns; c += kDropoutPiece) {
    const std::int64_t n = columns - c < kDropoutPiece ? columns - c : kDropoutPiece;
    dropout_factors(rule, static_cast<std::uint64_t>(samples[row / tokens]),
                    (row % tokens) * columns + c, n, factors);
    body(c, factors, n);
  }
}

}  // namespace tessera::kernels::TESSERA_ISA
