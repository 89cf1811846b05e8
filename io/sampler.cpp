#include "io/sampler.hpp"

#include <algorithm>
#include <bit>

#include "core/error.hpp"
#include "core/random.hpp"

namespace tessera::io {
namespace {

// Four rounds make a pseudo-random permutation of large words; small words need a few more.
constexpr std::uint64_t kRounds = 8;

std::uint64_t feistel(std::uint64_t value, int half_bits, RandomKey key) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = value >> half_bits, right = value & mask;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    // The last bits of a block of four go unused: the index is a counter, not an offset.
    const std::uint64_t next = left ^ (random_bits(key, round, 4 * right) & mask);
    left = right;
    right = next;
  }
  return left << half_bits | right;
}

}  // namespace

Sampler::Sampler(std::int64_t sequences, std::uint64_t seed, Shuffle shuffle)
    : sequences_(sequences), seed_(seed), shuffle_(shuffle) {
  if (sequences < 1) {
    throw DataError("the token files hold not even one sequence and its shifted targets");
  }
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(sequences - 1)));
  half_bits_ = std::max(1, (bits + 1) / 2);
}

std::int64_t Sampler::sequence_of(std::int64_t global_sample) const {
  TESSERA_CHECK(global_sample >= 0, "sample {}", global_sample);
  const std::int64_t index = global_sample % sequences_;
  if (shuffle_ == Shuffle::no) return index;
  const auto epoch = static_cast<std::uint64_t>(global_sample / sequences_);
  const RandomKey key = random_key(seed_, RandomPurpose::data_order, epoch);
  auto value = static_cast<std::uint64_t>(index);
  do {
    value = feistel(value, half_bits_, key);
  } while (value >= static_cast<std::uint64_t>(sequences_));
  return static_cast<std::int64_t>(value);
}

}  // namespace tessera::io
