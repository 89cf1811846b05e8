// What a user sees of a run: the start-up block, the step lines, and where the time went; and the
// same as events of metrics.jsonl for programs.
#pragma once

#include <optional>
#include <string_view>

#include "io/system_calls.hpp"
#include "train/evaluation.hpp"
#include "train/run.hpp"
#include "train/spent.hpp"
#include "train/step_result.hpp"

namespace tessera::train {

/// The fastest step so far, over all ranks.
struct StepRates {
  double best_step_s = 0;
  double best_gflops = 0;  // 6 N + 6 L C T a token
  double best_tokens_per_s = 0;
};

class Report {
 public:
  explicit Report(Run& run) : run_(run) {}

  // Collective, but for resume():
  /// The start-up block: what runs where, over which data, in how much memory.
  void start() const;
  /// The start is over: what its stages took.
  void started() const;
  /// After a step: what it took the device since the step before to record steps that it repeats,
  /// where it does.
  void recorded();
  /// Nodes' clocks matter to people who read logs of several, and to run.deadline: says where they
  /// disagree.
  void clocks() const;
  /// `own`: a checkpoint of this run; `bytes_read` is the most that any rank read.
  void resume(const LoadedCheckpoint& from, bool own, std::int64_t bytes_read);
  /// The first step begins.
  void begin();
  /// Where this start's time went, `waited_for_saves` seconds of it for checkpoints.
  void end(std::string_view reason, double waited_for_saves) const;

  /// `spreads`: on rank 0.
  void step(const StepResult& result, const std::optional<StepSpreads>& spreads);
  void evaluated(const Evaluation& evaluation);
  /// What an evaluation took, also when it was given up; and what all have.
  void add_evaluation(const Spent& spent) { evaluations_ += spent; }
  const Spent& evaluations() const { return evaluations_; }
  const StepRates& rates() const { return rates_; }

 private:
  void say_model_and_layout() const;
  std::string data_text() const;
  std::string lengths_text() const;
  void say_memory() const;
  void say_notes() const;
  void say_how_to_stop() const;
  std::optional<deck::Deck> deck_before(const LoadedCheckpoint& from, bool own) const;
  void warn_of_moved_rate(const deck::Deck& before);
  nlohmann::json corpora_json(const StepResult& result) const;
  void step_event(const StepResult& result, const StepSpreads& spreads);
  void step_line(const StepResult& result) const;
  double flop() const;
  double tflops(const StepResult& result) const;
  double share_of(double rate, const StepResult& result) const;
  std::optional<double> seconds_left(const StepResult& result) const;
  double say_times(double waited_for_saves, double slowest_own) const;

  Run& run_;
  std::int64_t first_step_ = 1;  // of this start
  StepTimes steps_;              // of this start, in all
  std::int64_t skips_ = 0;
  double recording_ = 0;  // s, as reported
  Spent evaluations_;
  SteadyClock::time_point begin_ = SteadyClock::now();  // of this start's training
  std::int64_t steps_done_ = 0;                         // in this start
  SteadyClock::time_point first_end_;                   // of the first of them
  StepRates rates_;
  io::IoBytes io_;  // until the last step that was reported
};

}  // namespace tessera::train
