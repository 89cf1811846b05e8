// The model that is trained, as it draws answers and says how good they are: with the parameters
// that training has, on its layout. And the model that the run began with.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "train/generation/engine_decoder.hpp"
#include "train/run.hpp"
#include "train/trained_engine.hpp"

namespace tessera::train {

/// Whether the model that a run begins with takes memory of its own beside the trained one: where
/// weights are trained that it has too, be it those of adapters, and task.kl is above 0.
bool has_own_reference(const deck::Deck& deck);

/// The tokens of an answer, at least one, behind those of its prompt.
struct Said {
  std::span<const std::int32_t> prompt, answer;
};
/// Adds them as a sample of a step, without its number: the answer's tokens are the targets that
/// count, and padding follows. Returns at which target of the step the answer begins.
std::size_t add_sample(data::StepTokens& step, const Said& said, const data::DocumentRule& rule);

class Actor {
 public:
  /// Collective. Opens the reference model, where one of its own is wanted. MemoryError, on every
  /// rank, where that one does not fit beside training.
  explicit Actor(Run& run);

  EngineDecoder& decoder() { return decoder_; }
  /// -log p of each of the answers' tokens under the model that the run began with: what adapters
  /// are beside, or else a model of its own. Collective; every rank has all answers, and gets what
  /// is said of all.
  std::vector<std::vector<float>> reference_losses(std::span<const Said> answers);
  /// Likewise the values of the states that the tokens were said in.
  std::vector<std::vector<float>> values(std::span<const Said> answers);

 private:
  std::vector<std::vector<float>> score(Engine& engine, const plan::PlanShape& shape,
                                        std::span<const Said> answers) const;

  Run& run_;
  data::DocumentRule documents_;
  EngineDecoder decoder_;
  deck::LoadedDeck reference_deck_;
  std::optional<TrainedEngine> reference_;  // where it is one of its own
};

}  // namespace tessera::train
