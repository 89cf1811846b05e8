// Mean loss over validation data, and what it is in bits a byte of text: between the steps of a
// run, and of a deck or checkpoint by itself.
#pragma once

#include <cmath>
#include <optional>

#include "data/batches.hpp"
#include "io/token_files.hpp"
#include "train/confusion.hpp"
#include "train/execution/engine.hpp"

namespace tessera::train {

/// What a model says of some text.
struct TextLoss {
  double loss = 0;           // mean over the targets that count
  std::int64_t targets = 0;  // so many
  double bytes = 0;          // of text that they stand for; 0: not known, or none
  Confusion confusion;       // where targets are classes
  std::optional<Preferences> preferences = {};  // of pairs of answers, each a target

  double perplexity() const { return std::exp(loss); }
  /// Nothing where the bytes are not known.
  std::optional<double> bits_per_byte() const;
};
/// For people; `beta` is task.beta, where there are preferences to a reference model's.
std::string to_text(const TextLoss& loss, std::optional<double> beta);

/// Words for what an evaluation reads.
inline const char* samples_word(const TextLoss& loss) {
  return loss.confusion.classes() > 0 || loss.preferences ? "document" : "sequence";
}

struct Evaluation : TextLoss {
  std::vector<std::int64_t> choices;  // of experts, as StepOutput has them
  std::int64_t sequences = 0;
  double seconds = 0;
  struct Set : TextLoss {
    std::string path;  // the entry of data.validation
  };
  std::vector<Set> sets;
};

/// Lines below that of an evaluation: of each of several sets, and of classes, which have names.
std::vector<std::string> details(const Evaluation& evaluation, std::span<const std::string> names,
                                 std::optional<double> beta);

/// How many bytes of text each token stands for; empty where no tokenizer is known.
using TextBytes = std::vector<std::int32_t>;
/// Of the tokenizer of data.validation, or else of training data or the model; of the task's that
/// have no text to say it of, empty. Collective.
TextBytes validation_bytes(const deck::Deck& deck, const comm::Control& control);
/// Whether losses are of text, so that bits a byte mean something.
bool predicts_text(const deck::Deck& deck);
/// What people are told where there is none.
inline constexpr const char* kNoTextBytes =
    "bits a byte are not known: no tokenizer.json is beside data.validation, data.train or the "
    "model (tessera tokenize puts it there)";

/// Over the first evaluate.batches batches of each entry of `validation`, which holds at least one,
/// or over all of them if that is 0; the last one of documents that are classified may be filled
/// up; `engine` has a plan of evaluation_shape. `rules` are batch_rules() of deck and validation,
/// `text_bytes` of validation_bytes(). Nothing if some rank's `stop` says, before a batch, to give
/// it up. Collective. Throws DataError and IoError on every rank.
std::optional<Evaluation> evaluate(Engine& engine, const comm::Control& control,
                                   const deck::Deck& deck, const io::TokenCorpus& validation,
                                   const data::BatchRules& rules, const TextBytes& text_bytes,
                                   const std::function<bool()>& stop);

class TrainedEngine;

/// A deck's validation data, which models are evaluated over.
class DeckEvaluation {
 public:
  /// Collective. Throws DeckError and DataError, on every rank, for data that cannot be used.
  DeckEvaluation(const deck::LoadedDeck& loaded, const Job& job);
  /// Of its plan.
  plan::PlanShape shape() const;
  /// Evaluates an engine of that shape, as evaluate() does, and says on rank 0's stdout what comes
  /// of it; throws as TrainedEngine::check_loss(). Collective.
  void say(TrainedEngine& trained, const std::string& name) const;

 private:
  const deck::LoadedDeck& loaded_;
  const comm::Control& control_;
  std::unique_ptr<const io::TokenCorpus> validation_;
  TextBytes text_bytes_;
  data::BatchRules rules_;
};

/// Evaluates a TrainedEngine over data.validation, and throws as it does. Writes nothing but a line
/// on rank 0's stdout, and one for each of several sets, so a training job may be at work in the
/// run directory. Collective.
void evaluate_deck(const deck::LoadedDeck& loaded, const Job& job, std::string_view weights);

}  // namespace tessera::train
