// Which sequence a sample is, without state: a fixed function of (seed, global sample index), so
// that the order of the data does not depend on the layout and a restart needs no bookkeeping.
#pragma once

#include <cstdint>

namespace tessera::io {

enum class Shuffle : std::uint8_t { no, yes };

/// Sample g is element g mod N of a permutation of the N sequences, drawn anew for each epoch
/// g div N. The permutation is a Feistel network (Luby and Rackoff 1988) on the smallest square
/// power of two >= N, walked until it lands below N (Black and Rogaway 2002): fewer than four steps
/// on average. Without shuffling, sample g is sequence g mod N.
class Sampler {
 public:
  /// DataError if there are no sequences.
  Sampler(std::int64_t sequences, std::uint64_t seed, Shuffle shuffle);

  std::int64_t sequences() const { return sequences_; }
  std::int64_t sequence_of(std::int64_t global_sample) const;

 private:
  std::int64_t sequences_;
  std::uint64_t seed_;
  Shuffle shuffle_;
  int half_bits_;  // of a Feistel word; the network permutes [0, 4^half_bits_)
};

}  // namespace tessera::io
