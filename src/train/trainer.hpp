// The training loop: one plan a step, and around it everything that happens between steps.
#pragma once

#include <map>
#include <optional>

#include "optim/learning_rate.hpp"
#include "optim/loss_scaler.hpp"
#include "train/batches.hpp"
#include "train/executor.hpp"
#include "train/model_state.hpp"
#include "train/run_directory.hpp"
#include "train/saver.hpp"
#include "train/setup.hpp"
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
};

/// The fastest step so far, over all ranks.
struct StepRates {
  double best_step_s = 0;
  double best_gflops = 0;  // 6 N + 6 L C T a token
  double best_tokens_per_s = 0;
};

class Trainer {
 public:
  /// Collective over all ranks, as is every method.
  Trainer(const deck::LoadedDeck& loaded, const comm::MpiSession& mpi,
          const comm::Control& control);

  /// Trains to the end of the run or until asked to stop.
  ExitCode train();
  /// Mean loss over the validation set, from the checkpoint (or initial weights) that the deck
  /// resumes from.
  double evaluate_once();
  const StepRates& rates() const { return rates_; }

 private:
  const plan::Plan& plan(plan::PlanPurpose purpose, std::int64_t micro_batches);
  const BoundPlan& bound(plan::PlanPurpose purpose, std::int64_t micro_batches);
  void make_plans();
  void allocate();
  void agree_on_plans();
  void start_or_resume();
  bool try_checkpoint(const std::filesystem::path& path);
  void restore(const CheckpointHeader& header, const deck::PrecisionSection& saved);
  CheckpointHeader header() const;

  ExitCode train_steps();
  StepResult run_step(bool snapshot);
  void after_step(const StepResult& result);
  void save_now();
  void finish_save();
  double evaluate();

  void report_start();
  void report_step(const StepResult& result);
  void report_end(std::string_view reason);

  const deck::LoadedDeck& loaded_;
  const deck::Deck& deck_;
  const comm::MpiSession& mpi_;
  const comm::Control& control_;
  std::filesystem::path directory_;
  std::unique_ptr<RunLock> lock_;
  Reporter report_;
  std::unique_ptr<kernels::Device> device_;
  DataGroups data_;
  plan::PlanInputs inputs_;
  std::unique_ptr<TokenCorpus> corpus_, validation_;
  optim::Timeline timeline_;
  std::int64_t run_steps_ = 0;
  std::optional<optim::LearningRate> rate_;
  optim::LossScaler scaler_;
  std::map<plan::PlanShape, plan::Plan> plans_;
  std::map<plan::PlanShape, BoundPlan> bound_;
  std::map<plan::PlanShape, comm::WireBytes> wire_;  // the most that any rank sends
  std::optional<memory::Arena> state_arena_, step_arena_;
  std::int64_t resident_before_ = 0;
  std::optional<ModelState> state_;
  std::optional<Batches> batches_;
  std::optional<memory::BackgroundStreams> streams_;
  std::optional<Executor> executor_;
  std::optional<Saver> saver_;
  StopRequests stop_;
  Progress progress_;
  std::int64_t skips_ = 0, consecutive_skips_ = 0;
  std::optional<std::string> stop_reason_;  // this rank's, before the last step
  bool stop_agreed_ = false;
  double slowest_step_s_ = 0, slowest_save_s_ = 0;
  std::int64_t first_step_ = 1;  // of this start
  StepTimes spent_;
  StepRates rates_;
  double checkpoint_stall_ = 0, evaluation_time_ = 0;
};

}  // namespace tessera::train
