// What is said of the answers that a model drew in a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::train {

/// What a step's answers were.
struct RolloutSummary {
  double reward = 0;     // mean
  double deviation = 0;  // of rewards to one prompt, mean over prompts
  double alike = 0;      // the share of prompts whose answers all had the same reward
  double tokens = 0;     // of an answer, mean
  double cut = 0;        // the share of answers that the limit of tokens has ended
  double entropy = 0;    // -log p of a token under the model that drew it, mean, in nats
  double kl = 0;         // log p less that under the reference model, mean; 0 without one
  std::optional<double> explained;  // of the variance of returns, by values, where there are some
  // Of the step, where the model has been updated since it drew: the share of tokens that the clip
  // held, and log p when drawn less log p, mean.
  std::optional<double> clipped, moved;
  // Of the step: half the squared error of what the critic expects, mean over targets, and the
  // magnitude of its gradient, where there is one.
  std::optional<double> critic_loss, critic_norm;
  bool critic_applied = true;           // its update happened
  double drawing_s = 0, judging_s = 0;  // of the slowest rank
  std::int64_t answers = 0;
};

/// For people.
std::string to_text(const RolloutSummary& summary);

}  // namespace tessera::train
