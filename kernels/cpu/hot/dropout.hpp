// Dropout factors for a run of elements: core/random.hpp's random_bits, sixteen counters at a time.
#pragma once

#include "kernels/common/dropout.hpp"
#include "kernels/cpu/hot/vec.hpp"

namespace tessera::kernels::TESSERA_ISA {

/// random_bits(key, stream, 4 block + i) for i in [0, 64).
TESSERA_INLINE void philox_block(RandomKey key, std::uint64_t stream, std::uint64_t block,
                                 std::uint32_t* out) {
  std::uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (int j = 0; j < kLanes; ++j) {
    const std::uint64_t b = block + static_cast<std::uint64_t>(j);
    c0[j] = static_cast<std::uint32_t>(b), c1[j] = static_cast<std::uint32_t>(b >> 32);
    c2[j] = static_cast<std::uint32_t>(stream), c3[j] = static_cast<std::uint32_t>(stream >> 32);
  }
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int j = 0; j < kLanes; ++j) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * c0[j];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * c2[j];
      c0[j] = static_cast<std::uint32_t>(p1 >> 32) ^ c1[j] ^ key.k0;
      c1[j] = static_cast<std::uint32_t>(p1);
      c2[j] = static_cast<std::uint32_t>(p0 >> 32) ^ c3[j] ^ key.k1;
      c3[j] = static_cast<std::uint32_t>(p0);
    }
    key.k0 += 0x9E3779B9U;
    key.k1 += 0xBB67AE85U;
  }
  for (int j = 0; j < kLanes; ++j) {
    out[4 * j] = c0[j], out[4 * j + 1] = c1[j], out[4 * j + 2] = c2[j], out[4 * j + 3] = c3[j];
  }
}

/// factors[i] = 0 or the rule's factor for elements first .. first + n of a sample.
inline void dropout_factors(const DropoutRule& rule, std::uint64_t sample, std::int64_t first,
                            std::int64_t n, float* factors) {
  std::uint32_t bits[4 * kLanes];
  std::int64_t i = 0;
  while (i < n) {
    const std::int64_t element = first + i;
    philox_block(rule.key, sample, static_cast<std::uint64_t>(element / 4), bits);
    const std::int64_t skip = element % 4;
    const std::int64_t count = n - i < 4 * kLanes - skip ? n - i : 4 * kLanes - skip;
    for (std::int64_t j = 0; j < count; ++j) {
      factors[i + j] = bits[skip + j] >= rule.threshold ? rule.factor : 0.0F;
    }
    i += count;
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
