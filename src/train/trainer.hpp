// The training loop: one plan a step, and around it everything that happens between steps.
#pragma once

#include <optional>

#include "data/batches.hpp"
#include "train/execution/profile.hpp"
#include "train/guards/fault_injection.hpp"
#include "train/guards/guards.hpp"
#include "train/guards/stop.hpp"
#include "train/policy/rollouts.hpp"
#include "train/report/report.hpp"
#include "train/run.hpp"
#include "train/saves/saves.hpp"
#include "train/spent.hpp"

namespace tessera::train {

class Trainer {
 public:
  /// Collective over all ranks, as is every method. Takes the run directory's lock.
  Trainer(const deck::LoadedDeck& loaded, const Job& job);

  /// Trains to the end of the run or until asked to stop.
  ExitCode train();
  const StepRates& rates() const { return report_.rates(); }

 private:
  void start();
  void open_tokens();
  void start_or_resume();
  void check_switch();
  void say_source(std::string_view verb);
  void check_data(const LoadedCheckpoint& from);

  ExitCode train_or_agree_to_fail();
  ExitCode train_steps();
  /// Not while steps are left that learn from answers which are in no checkpoint.
  bool must_stop() const {
    return stop_agreed_ && !run_.course.over() && (rollouts_ == nullptr || rollouts_->round_over());
  }
  ExitCode stop_on_request();
  /// nullptr where no other model than the run's is trained.
  Critic* critic() const { return rollouts_ == nullptr ? nullptr : rollouts_->critic(); }
  StepResult run_step();
  double learning_rate() const;
  StepInput step_input(const plan::Plan& plan, double lr) const;
  std::exception_ptr read_batch(const plan::PlanShape& shape);
  void measure_to_end(StepTimes& times);
  /// The critic's part of the step, whose times are added to the other model's.
  std::optional<Critic::Step> train_critic(plan::PlanPurpose purpose, StepTimes& times);
  RolloutSummary rollout_of(const plan::Plan& plan, const StepOutput& output,
                            const std::optional<Critic::Step>& critic) const;
  StepResult finish_step(const plan::Plan& plan, const StepOutput& output, const StepInput& input,
                         double lr, const StepTimes& times,
                         const std::optional<Critic::Step>& critic);
  void after_step(const StepResult& result);
  void keep_answers();
  void evaluate_if_due();
  io::CheckpointHeader header() const;

  Run run_;
  Report report_;
  // Made by start():
  std::optional<FaultInjection> faults_;
  std::optional<Profiler> profiler_;
  std::unique_ptr<data::StepSource> tokens_;
  Rollouts* rollouts_ = nullptr;  // where the model draws them
  std::optional<Saves> saves_;
  std::optional<Guards> guards_;
  StopRequests stop_;
  std::optional<std::string> stop_reason_;            // this rank's, before the last step
  std::optional<data::BatchRules> validation_rules_;  // where something is evaluated
  bool stop_agreed_ = false;
  double slowest_step_s_ = 0;
  std::string source_;    // the model directory that the weights began as; empty: random ones
  Stopwatch since_step_;  // since the end of the step before
  Spent apart_;           // on saves and evaluations, until then
};

}  // namespace tessera::train
