// The directory of checkpoints: what is in it, and what may go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "io/checkpoint_hold.hpp"

namespace tessera::io {

struct CheckpointEntry {
  std::int64_t step;
  std::filesystem::path path;
};

/// checkpoints/step_00000100
std::filesystem::path checkpoint_path(const std::filesystem::path& checkpoints, std::int64_t step);

/// Where a checkpoint is while another of the same step takes its name.
std::filesystem::path replaced_path(const std::filesystem::path& checkpoint);

/// Ends what crashed or failed saves have begun: a checkpoint whose name was to go to another that
/// never came gets it back, all other directories of theirs go. For the job that holds the run
/// directory alone, while no save is under way.
void clean_up_checkpoints(const std::filesystem::path& checkpoints);

/// Cleans up and creates step_NNNNNNNN.tmp. One rank calls it, never while
/// another save is under way; when it returns, all may construct their CheckpointWriter there.
std::filesystem::path begin_checkpoint(const std::filesystem::path& checkpoints, std::int64_t step);

/// Everything that was committed as a checkpoint, newest first, whatever became of it since: what a
/// run that goes on should try, and hear of if it cannot be used.
std::vector<CheckpointEntry> committed_checkpoints(const std::filesystem::path& checkpoints);

/// The valid checkpoints, newest first: a good manifest and files of the right size. Damage inside
/// the files shows when they are read. A directory that does not exist holds none.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& checkpoints);

/// The newest valid checkpoint, held: of those that a job at work removes meanwhile the next one is
/// taken. Nothing if there are none.
struct HeldCheckpoint {
  std::filesystem::path path;
  CheckpointHold hold;
};
std::optional<HeldCheckpoint> hold_newest(const std::filesystem::path& checkpoints);

/// A run that goes on from `step` leaves the branch that later checkpoints belong to: they get
/// names that end in ".abandoned", so that neither the next start nor pruning takes them for this
/// run's. Returns what was renamed.
std::vector<CheckpointEntry> set_aside_after(const std::filesystem::path& checkpoints,
                                             std::int64_t step);

/// Removes all checkpoints but these, and cleans up:
/// - the newest `keep` (0: none is removed; so the newest always stays);
/// - those whose step is a multiple of `keep_every` (0: no such rule);
/// - the newest proven one: with fewer updates than the `applied_updates` of the run now, so that a
///   step after it had a finite gradient. Others may hold a state that no step can leave;
/// - those that somebody reads (CheckpointHold), until the next time.
/// What counts is a good manifest; no other file is opened. Call it after a commit only. Returns
/// what was removed.
std::vector<CheckpointEntry> prune_checkpoints(const std::filesystem::path& checkpoints,
                                               std::int64_t keep, std::int64_t keep_every,
                                               std::int64_t applied_updates);

/// Committed checkpoints with fewer updates than this, newest first: from each of them a run that
/// has come to `applied_updates` has applied a step. Those without a good manifest are left out.
std::vector<CheckpointEntry> proven_checkpoints(const std::filesystem::path& checkpoints,
                                                std::int64_t applied_updates);

}  // namespace tessera::io
