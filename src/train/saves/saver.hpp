// Writes checkpoints beside training, in two phases with a thread each: every rank writes its file;
// when all are done, rank 0 commits and prunes. Training waits for the save only where all ranks
// agree that a phase is over. HDF5 is called by one thread at a time.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "comm/mpi/control.hpp"
#include "io/checkpoint_commit.hpp"
#include "io/checkpoint_directory.hpp"
#include "streams/workers.hpp"
#include "train/state/model_state.hpp"

namespace tessera::train {

struct SaveResult {
  std::filesystem::path path;
  std::int64_t step = 0;
  std::int64_t bytes = 0;  // of all ranks
  double seconds = 0;      // from begin to commit
  std::string not_pruned;  // on rank 0: why older checkpoints that may go are still there
};

class Saver {
 public:
  /// `before_commit` is called on rank 0, on the saver's thread, before the commit: it makes
  /// durable what must not be missing beside the checkpoint.
  Saver(const comm::Control& control, std::filesystem::path directory, std::int64_t keep,
        std::int64_t keep_every, std::function<void()> before_commit)
      : control_(control),
        directory_(std::move(directory)),
        keep_(keep),
        keep_every_(keep_every),
        before_commit_(std::move(before_commit)) {}

  /// Opens the checkpoint before the step whose plan saves tiles. Collective, as begin() is, which
  /// follows the step with the same header.
  void open(const ModelState& state, io::CheckpointHeader header);
  /// Begins to write a tile into the checkpoint that is open. What fails shows when the phase ends:
  /// the step goes on.
  std::unique_ptr<streams::Task> save_tile(const ModelState& state, const plan::Op& op,
                                           const plan::SaveTile& tile);
  /// Starts writing; `state` (the live one or the snapshot) must not change until the write is
  /// over: beside a snapshot training goes on, and the save has a low priority (but tiles, for
  /// which the step may wait). Collective: every rank calls it at the same point. Never while a
  /// save is under way.
  void begin(const ModelState& state, ModelState::From from, io::CheckpointHeader header);
  bool active() const { return phase_ != Phase::none; }
  /// The step of the save under way, or of the last one.
  std::int64_t step() const { return header_.step; }
  /// Whether this rank's share of the phase is done, with or without an error. Once all ranks say
  /// so, advance() does not wait.
  bool phase_done() const { return done_.load(std::memory_order_acquire); }
  /// Waits for the end of the phase on all ranks. After the first phase it begins the second and
  /// returns nothing; after the second there is a checkpoint. Collective. Throws the lowest failing
  /// rank's error on every rank, but what fails after the commit is only reported.
  /// `applied_updates` of the run so far decide which older checkpoints may be pruned.
  std::optional<SaveResult> advance(std::int64_t applied_updates);
  /// Gives up the save under way, if there is one: the next begin() removes what it has written.
  void abandon();

 private:
  enum class Phase : std::uint8_t { none, write, commit };

  void make_directory(io::CheckpointHeader header);
  void start(Phase phase, std::function<void()> work);
  void end_thread();
  void commit(const std::vector<std::string>& parts, std::int64_t applied_updates);

  const comm::Control& control_;
  std::filesystem::path directory_;
  std::int64_t keep_, keep_every_;
  std::function<void()> before_commit_;
  Phase phase_ = Phase::none;
  io::CheckpointHeader header_;
  ModelState::From from_ = ModelState::From::live;
  std::filesystem::path temporary_;
  double began_ = 0;
  std::atomic<bool> done_{false};
  std::exception_ptr error_;                    // of thread_
  std::optional<io::CheckpointWriter> writer_;  // open
  std::exception_ptr tile_error_;               // of the writer, before thread_ has it
  io::RankPart part_;                           // of thread_, writing
  SaveResult result_;         // of thread_, committing: but for the step, rank 0's
  streams::Workers writers_;  // of tiles
  std::jthread thread_;       // last: it uses the others
};

}  // namespace tessera::train
