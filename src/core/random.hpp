// Counter-based random numbers (Philox4x32-10; Salmon et al. 2011, "Parallel random numbers: as
// easy as 1, 2, 3"). A number is a pure function of (key, stream, index), so initial weights,
// dropout masks and data order do not depend on the layout, on the micro-batch size, on
// recomputation or on a restart.
#pragma once

#include <array>
#include <cstdint>

namespace tessera {

/// What a random number is for; part of the key, so that no two purposes share numbers.
enum class RandomPurpose : std::uint32_t {
  init = 1,
  dropout = 2,
  data_order = 3,
  sampling = 4,
  rounding = 5,
  masking = 6,
  jitter = 7
};

struct RandomKey {
  std::uint32_t k0 = 0;
  std::uint32_t k1 = 0;
};

constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  RandomKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key.k0, static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key.k1, static_cast<std::uint32_t>(p0)};
    key.k0 += 0x9E3779B9U;
    key.k1 += 0xBB67AE85U;
  }
  return counter;
}

/// The key of one purpose and site (a parameter's id, a dropout site) under the run's seed.
constexpr RandomKey random_key(std::uint64_t seed, RandomPurpose purpose, std::uint64_t site) {
  const auto w =
      philox4x32({static_cast<std::uint32_t>(site), static_cast<std::uint32_t>(site >> 32),
                  static_cast<std::uint32_t>(purpose), 0x7e55e4aU},
                 {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return {w[0], w[1]};
}

/// Block number `block` of the stream (`stream` is a sample index or a step).
constexpr std::array<std::uint32_t, 4> random_block(RandomKey key, std::uint64_t stream,
                                                    std::uint64_t block) {
  return philox4x32({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                     static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                    key);
}

/// 32 random bits at `index` of the stream.
constexpr std::uint32_t random_bits(RandomKey key, std::uint64_t stream, std::uint64_t index) {
  return random_block(key, stream, index / 4)[index % 4];
}

/// 16 random bits at `index` of the stream, of which a block of Philox has eight.
constexpr std::uint32_t random_half(RandomKey key, std::uint64_t stream, std::uint64_t index) {
  return random_bits(key, stream, index / 2) >> (16 * (index % 2)) & 0xffffU;
}

/// Uniform in (0, 1), 24 bits, never 0.
constexpr float to_uniform(std::uint32_t bits) {
  return (static_cast<float>(bits >> 8) + 0.5F) * 0x1p-24F;
}

/// Standard normal at `index` of the stream (Box-Muller in double, so that libm's float variants do
/// not matter).
double random_normal(RandomKey key, std::uint64_t stream, std::uint64_t index);

}  // namespace tessera
