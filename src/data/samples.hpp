// Where in the corpus the samples of a run begin: a fixed function of the sample's number, the seed
// and the deck, so that it does not depend on the layout and a restart needs no bookkeeping.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "io/sampler.hpp"
#include "io/token_files.hpp"
#include "optim/timeline.hpp"

namespace tessera::data {

/// Tokens of a corpus: a stretch of it, or documents from anywhere in it, each a range.
using Stretches = std::vector<Range>;
/// The tokens of a sample, of which a step of a curriculum may take the beginning; nothing where it
/// is padding alone. Safe to call from many threads at once.
using SampleTokens = std::function<Stretches(std::int64_t sample)>;

/// Calls with the token behind which each document of some tokens ends, in order; what follows the
/// last end is one too.
void for_each_document_end(const io::TokenCorpus& corpus, Range tokens,
                           const std::function<void(std::int64_t)>& end_at);

/// How many tokens a document may have, and the key of the deck that says so.
struct LongestDocument {
  std::int64_t tokens = 0;
  const char* key = "batch.sequence";
};

/// The sequences that some tokens of a corpus are cut into.
class Sequences {
 public:
  /// Of `length` tokens each that are followed by a target; what is left over is in none.
  Sequences(Range tokens, std::int64_t length);
  /// Of as many whole documents as `budget` tokens hold, one after another. DataError for a
  /// document of more than `longest` tokens, with `name` for the corpus.
  static Sequences of_documents(const io::TokenCorpus& corpus, Range tokens, std::int64_t budget,
                                LongestDocument longest, const std::string& name);
  /// Of one document each, of which `longest` tokens are taken; DataError for one that has more,
  /// unless they may be cut, with what may be done about it.
  static Sequences of_each_document(const io::TokenCorpus& corpus, Range tokens,
                                    LongestDocument longest, deck::Overlong overlong,
                                    const std::string& name,
                                    const char* remedy = "give a larger one");
  /// The documents of such sequences, in the order of `order`, several to a sequence: as many as
  /// have room in `budget` tokens, and `most` of them. Each goes where least room is left for it
  /// among the sequences that are not yet full, of which a few are open at a time (best fit).
  static Sequences packed(const Sequences& documents, const io::Sampler& order, std::int64_t budget,
                          std::int64_t most);

  std::int64_t count() const;
  Stretches operator[](std::int64_t sequence) const;
  /// How many stretches the first so many sequences have: documents, where they are of such.
  std::int64_t stretches(std::int64_t sequences) const;

 private:
  Range stretch(std::int64_t sequence) const;

  Range tokens_;
  std::int64_t length_ = 0;         // of a sequence, at most
  std::vector<std::int64_t> ends_;  // of sequences of documents
  // Of packed ones: their documents, and of each sequence the end of its own among these.
  Stretches documents_;
  std::vector<std::int64_t> packs_;
};
/// Of an entry of `entries`, which `corpus` was opened with, or of all that it has. `shuffle`:
/// whether labelled documents that share a sequence come from anywhere in it.
Sequences sequences_of(const io::TokenCorpus& corpus, const deck::Deck& deck, Range tokens,
                       const std::string& name, io::Shuffle shuffle);

/// Of the samples of a training run.
SampleTokens training_samples(const io::TokenCorpus& corpus, const deck::Deck& deck);
/// How many of them are an epoch: those of all sequences of the corpus or, of a mixture, of all
/// corpora, each as often as its epochs say.
std::int64_t epoch_samples(const io::TokenCorpus& corpus, const deck::Deck& deck);

/// Deals samples to several corpora by their shares. Of the first n samples each corpus of k has
/// its share of n, to within k - 1 at any n; which one a sample is of, and the how manieth there,
/// follows from its number alone.
class Mixture {
 public:
  explicit Mixture(std::span<const double> shares);

  struct Place {
    std::size_t corpus = 0;
    std::int64_t sample = 0;  // of this corpus
  };
  Place place_of(std::int64_t sample) const;

 private:
  /// By corpus, its share of what the corpora before it leave, in units of 2^-62.
  std::vector<std::int64_t> of_rest_;
};

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
