// The tokens of a step, read ahead by a thread of their own so that loading does not stall a step.
#pragma once

#include <exception>
#include <future>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "data/labels.hpp"
#include "data/pairs.hpp"
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
  /// Ranks that divide each sequence, and into how many shares (kernels::ZigzagChunks) it is cut.
  std::int64_t context_ranks = 1, context_rank = 0, context_shares = 1;
  std::int64_t sequence = 0;  // tokens of each sample
  std::int64_t micro = 1, micro_batches = 1;
  ReduceWhen reduce = ReduceWhen::step;

  /// Offset, within the step's global batch, of the first sample of micro-batch k.
  std::int64_t first_sample(std::int64_t k) const {
    const std::int64_t leaf =
        reduce == ReduceWhen::step ? data_rank * micro_batches + k : k * data_ranks + data_rank;
    return leaf * micro;
  }
  /// Calls f(sample, start, tokens) for each row of tokens that this rank has, in order: which of
  /// its samples the row is of, and which tokens of it.
  template <typename F>
  void each_row(F&& f) const {
    const kernels::ZigzagChunks chunks{context_shares};
    const bool cut = context_shares > 1;
    const std::int64_t length = cut ? sequence / chunks.count() : sequence,
                       own = cut ? 2 * context_shares / context_ranks : 1;
    for (std::int64_t k = 0; k < micro_batches; ++k) {
      for (std::int64_t i = 0; i < own; ++i) {
        const std::int64_t chunk = cut ? chunks.chunk_of(context_rank * own / 2 + i / 2, i % 2) : 0;
        for (std::int64_t b = 0; b < micro; ++b) f(k * micro + b, chunk * length, length);
      }
    }
  }
  bool operator==(const BatchShare&) const = default;
};

/// Where documents end within sequences, for models that keep them apart.
struct DocumentRule {
  bool separate = false;
  bool positions = false;    // positions count from their begins
  bool whole = false;        // sequences are of whole documents
  std::int64_t longest = 0;  // tokens of a document of padding, at most; 0: any number
  /// The token that ends a document; nothing: documents end where their files say.
  std::optional<std::int32_t> separator;

  /// Adds the ends of what fills a sequence up to `length` behind `count` tokens.
  void add_padding(std::vector<std::int64_t>& ends, std::int64_t count, std::int64_t length) const;
};

/// Masked language modelling (Devlin et al. 2019, section 3.1): a share of the tokens are targets
/// of themselves, of which 80 % are masked, 10 % become another token and 10 % stay. Which, follows
/// from the number of the sample and the place in it.
struct MaskRule {
  double share = 0.15;
  std::int32_t mask = 0;  // token
  std::vector<std::int32_t> never;
  std::int64_t vocab = 0;
  std::uint64_t seed = 0;
};

/// What becomes of a corpus's tokens.
struct BatchRules {
  DocumentRule documents;
  std::optional<MaskRule> masking;  // nothing: the target of a token is the next one
  /// A sample is a document, or several, each with a label that is its only target, or with words
  /// whose labels are those of their first tokens.
  std::shared_ptr<const LabelledDocuments> labels;
  /// Where there are some, samples are pairs.
  std::shared_ptr<const References> references;
  /// Samples are pairs of documents, each with one target, that counts: its score.
  bool scored = false;
  std::int64_t most_documents = 1;  // of a sample whose documents have one target each

  /// Whether samples 2 i and 2 i + 1 are a pair of answers, which has one loss: what is counted are
  /// pairs, each with its chosen sample.
  bool paired() const { return references != nullptr || scored; }
};
/// How the deck has documents in sequences.
DocumentRule document_rule(const deck::Deck& deck);
/// DataError where `corpus` lacks labels that the deck's task needs, and as open_references() does.
BatchRules batch_rules(const deck::Deck& deck, const io::TokenCorpus& corpus);

/// A rank's part of a step, in the order in which its micro-batches have it.
struct StepTokens {
  std::int64_t first = -1;  // global sample of the step
  BatchShare share;
  std::vector<std::int32_t> tokens;     // per sample T
  std::vector<std::int32_t> targets;    // likewise, or of documents; -1 where none counts
  std::vector<std::int32_t> documents;  // per sample (T, 2), where they are separate
  std::vector<std::int64_t> samples;    // per sample, its number
  std::vector<std::int64_t> counted;    // per sample, how many targets count
  std::vector<std::int32_t> tallies;    // per sample, which tally it counts in
  std::vector<double> reference;        // per sample, its log p under the reference model, if any
  // Per sample T, where targets were drawn, as plan::LoadBatch has them.
  std::vector<float> advantages, weights, drawn_losses, reference_losses, returns, drawn_values;
  std::vector<std::int32_t> positions;  // per chunk (T, 2), where sequences are cut

  /// How many targets count.
  std::int64_t count() const { return std::accumulate(counted.begin(), counted.end(), 0L); }
  /// The same of each of so many tallies.
  std::vector<std::int64_t> count_by_tally(std::int64_t tallies_of_step) const;
  /// Adds a sample's documents, of which these are the ends that lie within `length` tokens.
  void add_documents(std::span<const std::int64_t> ends, std::int64_t length);
  /// Keeps this rank's chunks of each sequence, where sequences are cut: they are its samples then,
  /// in the order of model::MicroBatch. Documents stay those of whole sequences; positions count
  /// from their begins if `by_document`, else from the sequence's.
  void keep_chunks(bool by_document);
  /// Copies micro-batch k into the plan's buffers.
  void load(std::int64_t k, const plan::LoadBatch& views) const;
};

/// Where the tokens of steps come from.
class StepSource {
 public:
  virtual ~StepSource() = default;
  /// The step whose first global sample is `first` may be made from now on, beside others.
  virtual void prefetch(std::int64_t, const BatchShare&) {}
  /// Makes that step current.
  virtual void begin(std::int64_t first, const BatchShare& share) = 0;
  /// The same; where this rank alone cannot have its tokens, a step of zeros, and returns why.
  virtual std::exception_ptr begin_or_blank(std::int64_t first, const BatchShare& share) = 0;
  /// This data rank's part of the current step. A sample's tally is the entry of the corpus that it
  /// is of.
  const StepTokens& current() const { return current_; }

 protected:
  StepTokens current_;
};

class Batches final : public StepSource {
 public:
  Batches(const io::TokenCorpus& corpus, SampleTokens tokens_of, const BatchRules& rules = {})
      : corpus_(corpus),
        tokens_of_(std::move(tokens_of)),
        documents_(rules.documents),
        masking_(rules.masking),
        labels_(rules.labels),
        references_(rules.references),
        scored_(rules.scored),
        paired_(rules.paired()),
        most_documents_(rules.most_documents) {}

  /// Starts reading it.
  void prefetch(std::int64_t first, const BatchShare& share) override;
  /// Waits until it was read. Rethrows DataError and IoError.
  void begin(std::int64_t first, const BatchShare& share) override;
  std::exception_ptr begin_or_blank(std::int64_t first, const BatchShare& share) override;
  /// A step of zeros.
  void begin_blank(const BatchShare& share);

 private:
  StepTokens read(std::int64_t first, const BatchShare& share) const;
  void count_pair(StepTokens& step) const;
  void read_sequence(std::int64_t sample, Range tokens, std::int64_t length,
                     StepTokens& step) const;
  void read_documents(const Stretches& documents, std::int64_t length, StepTokens& step) const;
  void read_document(Range tokens, StepTokens& step) const;
  /// Whether a document has one target, whatever its length.
  bool one_target_each() const { return scored_ || (labels_ && labels_->words() == nullptr); }
  void mask(std::int64_t sample, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets) const;
  std::vector<std::int64_t> document_ends(Range tokens, std::span<const std::int32_t> row) const;
  const io::TokenCorpus& corpus_;
  SampleTokens tokens_of_;
  DocumentRule documents_;
  std::optional<MaskRule> masking_;
  std::shared_ptr<const LabelledDocuments> labels_;
  std::shared_ptr<const References> references_;
  bool scored_, paired_;
  std::int64_t most_documents_;
  std::future<StepTokens> pending_;
  std::jthread reader_;  // last: it uses the others
};

}  // namespace tessera::data
