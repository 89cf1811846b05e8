// A model of its own that says which rewards are to come, trained beside the one that answers
// (Schulman et al. 2017, PPO, section 5; DeepSpeed-Chat's step 3, Yao et al. 2023).
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "train/policy/scores.hpp"

namespace tessera::train {

/// Its state is in the run's checkpoints, where names of its tensors begin with "critic.".
class Critic {
 public:
  /// Makes plans and memory for task.critic, beside the run's engine, whose state it goes along
  /// with from now on. Collective; throws on every rank, as setup::critic_deck() does, and
  /// MemoryError where both do not fit together.
  explicit Critic(Run& run);
  Critic(const Critic&) = delete;
  Critic& operator=(const Critic&) = delete;

  /// The weights of its directory, for a run that begins. Collective. What people should know of
  /// them.
  std::vector<std::string> begin();
  /// Of each of the answers' tokens the value of the state that it was said in. As scores_of().
  std::vector<std::vector<float>> values(std::span<const Said> answers);

  struct Step {
    double loss = 0;       // half the squared error, mean over targets
    double grad_norm = 0;  // before clipping
    bool applied = true;
    StepTimes times;
  };
  /// The step of the run that comes, over the tokens of this rank that the other model learns from;
  /// with what its plan saves tiles by, if it does. Collective.
  Step train(plan::PlanPurpose purpose, const data::StepTokens& tokens,
             const Executor::SaveTile& save);
  const ModelState& unsettled_state() const { return engine_->unsettled_state(); }

 private:
  double learning_rate();

  Run& run_;
  deck::LoadedDeck deck_;
  std::optional<Engine> engine_;
  std::optional<Course> course_;  // for its rate
};

}  // namespace tessera::train
