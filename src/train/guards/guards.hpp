// What a training run does when numbers or machines go wrong: skipped steps, losses that leap,
// copies that differ, ranks that are slow.
#pragma once

#include <optional>
#include <string>

#include "data/batches.hpp"
#include "guard/pace.hpp"
#include "guard/spike_detector.hpp"
#include "guard/stragglers.hpp"
#include "train/guards/fault_injection.hpp"
#include "train/run.hpp"
#include "train/saves/saves.hpp"
#include "train/step_result.hpp"

namespace tessera::train {

/// Every method is collective but skipping() and save_to().
class Guards {
 public:
  Guards(Run& run, Saves& saves, FaultInjection& faults, data::StepSource& tokens);

  /// Training begins, from a checkpoint if there is one; `own`: of this very run.
  void begin(const LoadedCheckpoint* from, bool own);
  /// Compares what ranks did in a step; what came out is on rank 0.
  std::optional<StepSpreads> judge_speed(const StepTimes& times);
  /// Acts upon the step that has just run: counts it as skipped and says why, compares copies of
  /// the state, goes back to an earlier checkpoint. Throws NonFiniteError or CommError on all ranks
  /// where the run must end.
  void judge(const StepResult& result);
  /// Whether the last step was skipped, and no loss scale is being searched.
  bool skipping() const { return consecutive_skips_ > 0; }
  void save_to(io::CheckpointHeader& header) const { header.spike_window = spikes_.recent(); }

 private:
  void count_skip(const StepResult& result);
  std::string blame(const StepInput& ran);
  bool return_to_proven();
  void judge_critic(const StepResult& result);
  void judge_loss(double loss);
  void roll_back(double loss, double z);
  void go_on_from(const LoadedCheckpoint& from);
  void compare_replicas();

  Run& run_;
  Saves& saves_;
  FaultInjection& faults_;
  data::StepSource& tokens_;
  std::int64_t consecutive_skips_ = 0;
  std::int64_t critic_skips_ = 0;  // in a row, of steps that the other model did not skip
  std::optional<io::CheckpointHeader> unproven_;  // resumed from, and no step was applied since
  guard::SpikeDetector spikes_;
  std::int64_t rollbacks_ = 0, rolled_back_from_ = 0;  // in a row, and the last step among them
  std::int64_t replicas_equal_at_ = 0;                 // the last step at which they were
  guard::Stragglers stragglers_;
  guard::Pace pace_;
};

}  // namespace tessera::train
