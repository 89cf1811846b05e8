// The model that is trained, as it draws answers and says what they are expected to earn: with the
// parameters that training has, on its layout. And the model that the run began with.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "train/generation/engine_decoder.hpp"
#include "train/policy/scores.hpp"
#include "train/trained_engine.hpp"

namespace tessera::train {

/// Whether the model that a run begins with takes memory of its own beside the trained one: where
/// weights are trained that it has too, be it those of adapters, and task.kl is above 0.
bool has_own_reference(const deck::Deck& deck);

class Actor {
 public:
  /// Collective. Opens the reference model, where one of its own is wanted. MemoryError, on every
  /// rank, where that one does not fit beside training.
  explicit Actor(Run& run);

  EngineDecoder& decoder() { return decoder_; }
  /// -log p of each of the answers' tokens under the model that the run began with: what adapters
  /// are beside, or else a model of its own. As scores_of().
  std::vector<std::vector<float>> reference_losses(std::span<const Said> answers);
  /// Likewise the values of the states that the tokens were said in.
  std::vector<std::vector<float>> values(std::span<const Said> answers);

 private:
  Run& run_;
  data::DocumentRule documents_;
  EngineDecoder decoder_;
  deck::LoadedDeck reference_deck_;
  std::optional<TrainedEngine> reference_;  // where it is one of its own
};

}  // namespace tessera::train
