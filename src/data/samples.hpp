// Where in the corpus the samples of a run begin: a fixed function of the sample's number, the seed
// and the deck, so that it does not depend on the layout and a restart needs no bookkeeping.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "io/sampler.hpp"
#include "io/token_files.hpp"
#include "optim/timeline.hpp"

namespace tessera::data {

/// The token with which a sample begins. Safe to call from many threads at once.
using SampleBegin = std::function<std::int64_t(std::int64_t sample)>;

/// Samples that are the sampler's sequences of `length` tokens each, or the beginnings of these.
SampleBegin sequences_of(const io::Sampler& sampler, std::int64_t length);

/// Of the samples of a training run.
SampleBegin training_samples(const io::TokenCorpus& corpus, const deck::Deck& deck);

/// A corpus that each phase of a curriculum has cut into sequences of its own length, so that every
/// token is in one sample of an epoch. What the phases of an epoch have together lies in a row of
/// stretches; each stretch has a share of every phase's sequences, one phase after the other. So
/// all phases see all parts of the corpus, and only what is less than a sequence is left over, at
/// the epoch's end. A phase takes its sequences in the sampler's order.
class CutAnew {
 public:
  /// `tokens` that are followed by a target, enough for one sequence of each phase.
  CutAnew(std::int64_t tokens, const optim::Timeline& timeline, std::uint64_t seed,
          io::Shuffle shuffle);

  std::int64_t first_token(std::int64_t sample) const;

 private:
  /// The sequences that a phase has of an epoch.
  struct Piece {
    std::int64_t length = 0, count = 0;
  };
  /// One epoch, or several on end that are cut alike.
  struct Epochs {
    std::int64_t sample = 0;     // the first
    std::int64_t epoch = 0;      // likewise
    std::int64_t sequences = 0;  // of each
    std::vector<Piece> pieces;
  };
  void add(std::vector<Piece> pieces, std::int64_t repeats);
  std::int64_t token_of(const std::vector<Piece>& pieces, std::size_t which,
                        std::int64_t sequence) const;

  std::uint64_t seed_;
  io::Shuffle shuffle_;
  std::vector<Epochs> epochs_;  // ascending; the last goes on for ever
  std::int64_t next_sample_ = 0, next_epoch_ = 0;
};

}  // namespace tessera::data
