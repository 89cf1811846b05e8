#include "train/policy/reward_model.hpp"

#include "setup/judges.hpp"
#include "train/policy/beside.hpp"

namespace tessera::train {

RewardModel::RewardModel(Run& run) : run_(run) {
  run.control.together([&] { deck_ = setup::reward_deck(run.loaded, run.control.size()); });
  open_beside(model_, run, deck_, plan::Scores::outputs, "the reward model");
}

std::vector<double> RewardModel::of(std::span<const Said> answers) {
  Engine& engine = model_->engine();
  const auto scores =
      scores_of(answers,
                {engine, setup::score_shape(run_.deck, plan::Scores::outputs, engine.batch_ranks()),
                 data::document_rule(deck_.deck)},
                run_);
  std::vector<double> rewards;
  for (const std::vector<float>& score : scores)
    rewards.push_back(-static_cast<double>(score.front()));  // they come with their sign turned
  return rewards;
}

}  // namespace tessera::train
