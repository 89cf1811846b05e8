// The training loop: one plan a step, and around it everything that happens between steps.
#pragma once

#include <chrono>
#include <optional>

#include "guard/pace.hpp"
#include "guard/spike_detector.hpp"
#include "guard/stragglers.hpp"
#include "io/system_calls.hpp"
#include "optim/learning_rate.hpp"
#include "optim/loss_scaler.hpp"
#include "train/corpora.hpp"
#include "train/engine.hpp"
#include "train/fault_injection.hpp"
#include "train/profile.hpp"
#include "train/run_directory.hpp"
#include "train/saver.hpp"
#include "train/starting_state.hpp"
#include "train/stop.hpp"

namespace tessera::train {

/// What a step showed.
struct StepResult {
  double loss = 0;       // mean over the global batch's target tokens, before the update
  double grad_norm = 0;  // global, before clipping
  bool applied = true;
  StepTimes times;
};

/// How far a run has come; all of it is in every checkpoint's header.
struct Progress {
  std::int64_t step = 0;     // attempts
  std::int64_t applied = 0;  // updates
  std::int64_t samples = 0;
  std::vector<Range> skipped;  // samples that rollbacks have passed over
  double lr_factor = 1;        // what they have made of the learning rate
};

/// The fastest step so far, over all ranks.
struct StepRates {
  double best_step_s = 0;
  double best_gflops = 0;  // 6 N + 6 L C T a token
  double best_tokens_per_s = 0;
};

class Trainer {
 public:
  /// Collective over all ranks, as is every method. Takes the run directory's lock.
  Trainer(const deck::LoadedDeck& loaded, const Job& job);

  /// Trains to the end of the run or until asked to stop.
  ExitCode train();
  const StepRates& rates() const { return rates_; }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }
  /// Of this start, for report_end.
  struct Totals {
    StepTimes steps;
    double checkpoints_s = 0, evaluation_s = 0;
    std::int64_t skips = 0;
  };

  void start();
  void take_directory();
  void start_or_resume();
  void check_data(const LoadedCheckpoint& from);
  void restore(const LoadedCheckpoint& from);
  void pass_over(const std::filesystem::path& path, std::string_view why);
  void set_run_length();

  ExitCode train_or_agree_to_fail();
  ExitCode train_steps();
  ExitCode stop_on_request();
  StepResult run_step();
  StepInput step_input(std::int64_t global) const;
  std::exception_ptr read_batch(const plan::PlanShape& shape);
  StepResult finish_step(const StepOutput& output, std::int64_t global, const StepTimes& times);
  void after_step(const StepResult& result);
  void count_skip(double loss);
  /// Which tensor of which rank first was not finite in the step that has just run.
  std::string blame(const PreparedPlan& prepared, std::int64_t first_sample);
  bool return_to_proven();
  void judge_loss(double loss);
  void roll_back(double loss, double z);
  void compare_replicas();
  void judge_speed(const StepTimes& times);
  void save_or_evaluate();
  void evaluate();
  /// The plan of a step of `global` sequences.
  plan::PlanShape shape(plan::PlanPurpose purpose, std::int64_t global) const;

  CheckpointHeader header() const;
  void save_snapshot(const CheckpointHeader& before, const StepTimes& times);
  void advance_save();
  void finish_save();
  void note_saved(const SaveResult& saved);
  void save_now();

  void set_checkpoints_aside_after(std::int64_t step);

  void report_start();
  void report_clocks();
  /// `bytes_read` is the most that any rank read.
  void report_resume(const LoadedCheckpoint& from, std::int64_t bytes_read);
  void report_step(const StepResult& result);
  void report_end(std::string_view reason);

  const deck::LoadedDeck& loaded_;
  const deck::Deck& deck_;
  const Job& job_;
  const comm::Control& control_;
  std::filesystem::path directory_;
  std::unique_ptr<RunLock> lock_;
  Reporter report_;
  std::unique_ptr<TokenCorpus> corpus_, validation_;
  std::vector<DataFile> data_;  // of corpus_, on rank 0
  std::optional<Profiler> profiler_;
  std::optional<Engine> engine_;
  std::optional<FaultInjection> faults_;
  optim::Timeline timeline_;
  std::int64_t run_steps_ = 0;
  std::optional<optim::LearningRate> rate_;
  optim::LossScaler scaler_;
  std::optional<Batches> batches_;
  std::optional<Saver> saver_;
  StepInput last_input_;          // of the step that ran last
  std::int64_t saved_step_ = -1;  // whose state the newest checkpoint of this run holds
  bool save_due_ = false;         // of the state now, by the next step's snapshot
  bool save_late_ = false;        // was due at a step that was skipped
  double save_stall_ = 0;         // seconds that the save under way has kept training waiting
  StopRequests stop_;
  std::optional<std::string> stop_reason_;  // this rank's, before the last step
  bool stop_agreed_ = false;
  double slowest_step_s_ = 0, slowest_save_s_ = 0;
  Progress progress_;
  std::int64_t first_step_ = 1;  // of this start
  std::int64_t consecutive_skips_ = 0;
  std::optional<CheckpointHeader> unproven_;  // resumed from, and no step was applied since
  guard::SpikeDetector spikes_;
  std::int64_t rollbacks_ = 0, rolled_back_from_ = 0;  // in a row, and the last step among them
  std::int64_t replicas_equal_at_ = 0;                 // the last step at which they were
  guard::Stragglers stragglers_;
  guard::Pace pace_;
  std::optional<guard::ComputeSpread> spread_;  // of the last step, on rank 0
  Totals totals_;
  StepRates rates_;
  IoBytes io_;  // until the last step that was reported
};

}  // namespace tessera::train
