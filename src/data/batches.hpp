// The tokens of a step, read ahead by a thread of their own so that loading does not stall a step.
#pragma once

#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "data/samples.hpp"
#include "io/token_files.hpp"
#include "plan/passes/make_plan.hpp"

namespace tessera::data {

/// Which samples of a step a data rank's micro-batches have. The set and order of a step's samples
/// never depend on the layout; only which rank computes them does. Under zero.reduce "step" a rank
/// has consecutive micro-batches, under "micro" every D-th, so that both add gradients in one order
/// (aligned trees).
struct BatchShare {
  std::int64_t data_ranks = 1, data_rank = 0;
  std::int64_t sequence = 0;  // tokens of each sample
  std::int64_t micro = 1, micro_batches = 1;
  ReduceWhen reduce = ReduceWhen::step;

  /// Offset, within the step's global batch, of the first sample of micro-batch k.
  std::int64_t first_sample(std::int64_t k) const {
    const std::int64_t leaf =
        reduce == ReduceWhen::step ? data_rank * micro_batches + k : k * data_ranks + data_rank;
    return leaf * micro;
  }
  bool operator==(const BatchShare&) const = default;
};

/// Where documents end within sequences, for models that keep them apart.
struct DocumentRule {
  bool separate = false;
  bool whole = false;  // sequences are of whole documents
  /// The token that ends a document; nothing: documents end where their files say.
  std::optional<std::int32_t> separator;
};
DocumentRule document_rule(const deck::Deck& deck);

class Batches {
 public:
  Batches(const io::TokenCorpus& corpus, SampleTokens tokens_of, const DocumentRule& documents = {})
      : corpus_(corpus), tokens_of_(std::move(tokens_of)), documents_(documents) {}

  /// Starts reading the step whose first global sample is `first`.
  void prefetch(std::int64_t first, const BatchShare& share);
  /// Makes that step current: waits until it was read. Rethrows DataError and IoError.
  void begin(std::int64_t first, const BatchShare& share);
  /// A step of zeros, for a rank whose tokens cannot be read.
  void begin_blank(const BatchShare& share);
  /// How many targets of this data rank's part of the current step count.
  std::int64_t targets() const { return current_.counted; }
  /// Copies micro-batch k of the current step into the plan's buffers.
  void load(std::int64_t k, const plan::LoadBatch& views) const;

 private:
  struct Step {
    std::int64_t first = -1;
    BatchShare share;
    std::vector<std::int32_t> tokens;     // per sequence T
    std::vector<std::int32_t> targets;    // likewise; -1 where none counts
    std::vector<std::int32_t> documents;  // per sequence (T, 2), where they are separate
    std::vector<std::int64_t> samples;    // per sequence
    std::int64_t counted = 0;             // targets that count
  };
  Step read(std::int64_t first, const BatchShare& share) const;
  void read_sequence(Range tokens, std::int64_t length, Step& step) const;
  std::vector<std::int64_t> document_ends(Range tokens, std::span<const std::int32_t> row) const;
  static void add_documents(const std::vector<std::int64_t>& ends, std::int64_t length, Step& step);

  const io::TokenCorpus& corpus_;
  SampleTokens tokens_of_;
  DocumentRule documents_;
  Step current_;
  std::future<Step> pending_;
  std::jthread reader_;  // last: it uses the others
};

}  // namespace tessera::data
