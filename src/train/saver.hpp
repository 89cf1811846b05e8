// Checkpoints written beside training: a thread of its own writes this rank's file; when all ranks
// are done, rank 0 commits. HDF5 is called by that thread and, once it has ended, by the one that
// commits: never by two at once.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "comm/mpi/mpi_group.hpp"
#include "io/checkpoint_commit.hpp"
#include "io/checkpoint_directory.hpp"
#include "train/model_state.hpp"

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
  Saver(const comm::Control& control, std::filesystem::path directory, std::int64_t keep,
        std::int64_t keep_every)
      : control_(control), directory_(std::move(directory)), keep_(keep), keep_every_(keep_every) {}

  /// Starts writing; `state` (the live one or the snapshot) must not change until the write is
  /// over. Collective: every rank calls it at the same point. Never while a save
  /// is under way.
  void begin(const ModelState& state, ModelState::From from, CheckpointHeader header);
  bool active() const { return active_; }
  /// Of the save under way, or the last one.
  std::int64_t step() const { return header_.step; }
  /// Whether this rank's part of the save under way is written, well or badly: what ranks agree on
  /// before finish().
  bool written() const { return done_.load(std::memory_order_acquire); }
  /// Waits for all ranks, commits, prunes. Collective. Throws the lowest failing rank's error on
  /// every rank; but once there is a checkpoint, what fails is no more than reported.
  SaveResult finish();
  /// Gives up the save under way, if there is one: the next begin() removes what it has written.
  void abandon();

 private:
  std::string prune() const;

  const comm::Control& control_;
  std::filesystem::path directory_;
  std::int64_t keep_, keep_every_;
  bool active_ = false;
  CheckpointHeader header_;
  std::filesystem::path temporary_;
  double began_ = 0;
  std::atomic<bool> done_{false};
  std::exception_ptr error_;  // of thread_
  RankPart part_;             // of thread_
  std::jthread thread_;       // last: it uses the others
};

}  // namespace tessera::train
