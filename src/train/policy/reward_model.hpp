// A model that says how good answers are, which was trained with task.kind = "reward" (Ouyang et
// al. 2022).
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "train/policy/scores.hpp"
#include "train/trained_engine.hpp"

namespace tessera::train {

class RewardModel {
 public:
  /// Opens reward.model. Collective; throws on every rank, as setup::reward_deck() and
  /// open_beside().
  explicit RewardModel(Run& run);
  /// As scores_of().
  std::vector<double> of(std::span<const Said> answers);

 private:
  Run& run_;
  deck::LoadedDeck deck_;
  std::optional<TrainedEngine> model_;
};

}  // namespace tessera::train
