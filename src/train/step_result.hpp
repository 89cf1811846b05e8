// What a step of training showed.
#pragma once

#include "guard/stragglers.hpp"
#include "train/execution/executor.hpp"
#include "train/policy/rollout_summary.hpp"

namespace tessera::train {

struct StepResult {
  double loss = 0;           // mean over the global batch's targets that count, before the update
  double grad_norm = 0;      // global, before clipping
  double lr = 0;             // of the update that the step made, or would have made
  std::int64_t targets = 0;  // that count
  std::vector<LossSum> by_corpus;          // of a mixture: of its entry's samples
  std::vector<std::int64_t> choices;       // of experts, by layer
  std::optional<Preferences> preferences;  // where samples are pairs
  std::optional<RolloutSummary> rollout;   // where the model drew them
  bool applied = true;
  StepTimes times;
  StepInput input;  // what the step ran with
  plan::PlanShape shape;
};

/// How ranks differed in it.
struct StepSpreads {
  guard::RankSpread compute, own;  // StepTimes::computed() and own()
};

}  // namespace tessera::train
