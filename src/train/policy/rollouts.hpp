// Steps of a model that learns from what it says: it answers prompts, the answers are rewarded, and
// are the tokens of the steps of a round, each of which has its part of them (Shao et al. 2024,
// GRPO; Schulman et al. 2017, PPO).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/batches.hpp"
#include "data/prompts.hpp"
#include "io/sampler.hpp"
#include "train/generation/completions.hpp"
#include "train/policy/actor.hpp"
#include "train/policy/critic.hpp"
#include "train/policy/reward_model.hpp"
#include "train/policy/rewards.hpp"
#include "train/policy/rollout_summary.hpp"
#include "train/run.hpp"

namespace tessera::train {

/// Answer number n is to the prompt of number n / rollout.samples, in an order that the seed of the
/// run decides; its tokens follow from the weights, its number and the seed alone. So a step that
/// is run again, on whatever ranks, has the same answers, and a restart needs no bookkeeping.
class Rollouts final : public data::StepSource {
 public:
  /// Collective. Starts the reward program.
  explicit Rollouts(Run& run);

  /// Has the model, as it is, answer, where no answers of the step are left of a round before;
  /// shares them out. Collective over all ranks, of which each draws equally many, whatever part of
  /// the step it computes. Throws on all ranks alike.
  void begin(std::int64_t first, const data::BatchShare& share) override;
  /// What goes wrong, all ranks know of, or this one leaves alone: there are no blank steps.
  std::exception_ptr begin_or_blank(std::int64_t first, const data::BatchShare& share) override {
    begin(first, share);
    return nullptr;
  }

  /// Of the round; nothing is drawn in its later steps.
  const RolloutSummary& summary() const { return summary_; }
  /// Whether the step that has just run is the last one of its round.
  bool round_over() const;
  /// What says which rewards are to come; nullptr where the model itself does, or nobody.
  Critic* critic() { return critic_ ? &*critic_ : nullptr; }
  /// Lines of JSON of the current step's answers, in the order of their numbers.
  std::string to_lines() const;

 private:
  struct Answer {
    std::int64_t number = 0;
    double reward = 0;
    Ending ending = Ending::length;
    std::vector<std::int32_t> tokens;
    std::vector<float> drawn, reference;  // -log p of each, the latter where it is wanted
    std::vector<float> values;            // of the states that each was said in, where wanted
    std::vector<double> advantages;       // of each
    std::vector<float> returns;           // likewise, where values are wanted
  };
  const data::Prompts::Prompt& prompt_of(std::int64_t number) const;
  std::string text_of(const Answer& answer) const;
  /// How many answers the steps of a round need from the next one on.
  std::int64_t left_of_round() const;
  /// Draws a round; its later steps learn from what the first ones have left.
  void begin_round(std::int64_t first, std::int64_t count);
  /// This rank's, of so many; nothing where the model has diverged. Collective.
  std::optional<std::vector<Answer>> draw(std::int64_t first, std::int64_t count);
  void judge(std::vector<Answer>& answers);
  std::vector<Said> said() const;
  /// What reward.model says of it. DataError for what is no number that training can go on with.
  void set_reward(Answer& answer, double reward) const;
  /// Has the reference model, and that of values, say what they do of all answers. Collective.
  void score();
  /// All ranks' answers on every rank.
  std::vector<Answer> exchange(const std::vector<Answer>& own) const;
  void summarise(std::span<const double> rewards);
  double explained() const;
  /// Advantages of all answers, by their rewards alone, or by values too.
  void compare(std::span<const double> rewards);
  void compare_with_values();
  /// Where a model that has diverged draws nothing: answers whose losses are not finite, so that
  /// the step is skipped, and judged, as any other of such a model.
  void spoil(std::int64_t first, std::int64_t count);
  /// By answer of the step that begins with this one, what each of its targets weighs in the mean
  /// over all.
  std::vector<double> weights(std::size_t begin, std::size_t count) const;
  void add(std::size_t which, double weight);

  Run& run_;
  const data::Prompts& prompts_;
  io::Sampler order_;
  data::DocumentRule documents_;
  Actor actor_;
  Rewards rewards_;
  std::optional<RewardModel> reward_model_;  // in their place
  std::optional<Critic> critic_;
  std::vector<Answer> answers_;  // of the round
  RolloutSummary summary_;
};

}  // namespace tessera::train
