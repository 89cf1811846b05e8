// When a training run's state is saved, and what becomes of the saves under way.
#pragma once

#include <functional>

#include "train/guards/fault_injection.hpp"
#include "train/run.hpp"
#include "train/saves/saver.hpp"
#include "train/spent.hpp"

namespace tessera::train {

/// What begins, goes on with, ends or puts aside a save is collective.
class Saves {
 public:
  Saves(Run& run, FaultInjection& faults);

  /// What a checkpoint of the state now would say of itself.
  using MakeHeader = std::function<io::CheckpointHeader()>;
  /// Saves the state where the deck has it so after the step that has just run, or has the next
  /// step's plan copy it. `wait`: the save waits for a step after which it need not. While steps
  /// are skipped, the state may be one from which every step would be skipped; and within a round
  /// the answers that the next steps learn from are in no checkpoint.
  void after_step(bool wait, const MakeHeader& header);
  /// Whether the next step's plan is to copy the state; asked once. Waits for the save under way,
  /// whose copy it would overwrite.
  bool take_snapshot_due();
  /// Opens a checkpoint of the state before the step that comes, if its plan saves tiles.
  void open(const io::CheckpointHeader& before);
  /// What saves these, of the run's state or of what it takes along.
  Executor::SaveTile tiles_of(const ModelState& state);
  /// Begins to write what the plan of the step that has just run has copied: the state before it.
  void begin_snapshot(const io::CheckpointHeader& before, const StepTimes& times);
  /// Begins the next phase of a save once all ranks have ended one.
  void advance();
  /// Waits for the save under way.
  void finish();
  /// Saves the state now, and waits for it.
  void save_now(const io::CheckpointHeader& header);
  /// Saves the state only if a step wanted that.
  void save_if_due(const MakeHeader& header);

  /// States that no checkpoint has yet are given up, and so is the save under way.
  void abandon();
  /// Forgets that a state was to be saved, while a save under way goes on.
  void forget_due() { due_ = late_ = false; }
  /// Renames checkpoints of later steps, which this run has not come to or has given up.
  void set_aside_after(std::int64_t step);

  bool active() const { return saver_.active(); }
  /// Whether this rank's share of the phase under way is done.
  bool phase_done() const { return saver_.active() && saver_.phase_done(); }
  /// Of the save under way, or the last one.
  std::int64_t step() const { return saver_.step(); }
  /// The newest checkpoint of this run holds the state after this step; -1: that of no step.
  std::int64_t saved_step() const { return saved_step_; }
  void set_saved_step(std::int64_t step) { saved_step_ = step; }
  /// Seconds of the slowest save.
  double slowest() const { return slowest_; }
  /// Time that saves have kept training waiting.
  const Spent& spent() const { return spent_; }

 private:
  void note(const SaveResult& saved);
  /// Training has waited as long as the watch shows, for the save under way.
  void stall(const Stopwatch& watch);

  Run& run_;
  FaultInjection& faults_;
  Saver saver_;
  std::int64_t saved_step_ = -1;
  bool due_ = false;   // of the state now, by the next step's snapshot
  bool late_ = false;  // was due at a step that it did not want
  double stall_ = 0;   // seconds that the save under way has kept training waiting
  double slowest_ = 0;
  Spent spent_;
};

}  // namespace tessera::train
