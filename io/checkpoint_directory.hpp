// The directory of checkpoints: which there are, which may be removed, and what is left of saves
// that crashed.
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

/// The name of a checkpoint whose own name a newer one of the same step is taking.
std::filesystem::path replaced_path(const std::filesystem::path& checkpoint);

/// Cleans up after crashed or failed saves: a checkpoint that gave up its name for one that never
/// came gets it back, and all other directories of such saves are removed. For the job that holds
/// the run directory alone, while no save is under way.
void clean_up_checkpoints(const std::filesystem::path& checkpoints);

/// Cleans up and creates step_NNNNNNNN.tmp. One rank calls it, never while another save is under
/// way; when it has returned, all ranks may construct their CheckpointWriter there.
std::filesystem::path begin_checkpoint(const std::filesystem::path& checkpoints, std::int64_t step);

/// Everything that was committed as a checkpoint, newest first, even if it was damaged since: what
/// a run that goes on should try, and report if it cannot be used.
std::vector<CheckpointEntry> committed_checkpoints(const std::filesystem::path& checkpoints);

/// The valid checkpoints, newest first: a good manifest and files of the right size. Damage inside
/// the files shows when they are read. A directory that does not exist holds none.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& checkpoints);

/// The newest valid checkpoint, held so that pruning leaves it. If a job at work removes one
/// meanwhile, the next is taken. Nothing if there are none.
struct HeldCheckpoint {
  std::filesystem::path path;
  CheckpointHold hold;
};
std::optional<HeldCheckpoint> hold_newest(const std::filesystem::path& checkpoints);

/// When a run goes back to `step`, checkpoints of later steps belong to a past that it has left.
/// They get names that end in ".abandoned", so that neither the next start nor pruning takes them
/// for this run's. Returns what was renamed.
std::vector<CheckpointEntry> set_aside_after(const std::filesystem::path& checkpoints,
                                             std::int64_t step);

/// Removes all checkpoints but these, and cleans up:
/// - the newest `keep` (0: none is removed; so the newest always stays);
/// - those whose step is a multiple of `keep_every` (0: no such rule);
/// - the newest proven one: it has fewer applied updates than the run now (`applied_updates`), so a
///   step after it had a finite gradient. Newer ones may hold a state from which every step is
///   skipped;
/// - those that somebody reads (CheckpointHold), until the next time.
/// Only manifests are read to decide. Call it after a commit only. Returns what was removed.
std::vector<CheckpointEntry> prune_checkpoints(const std::filesystem::path& checkpoints,
                                               std::int64_t keep, std::int64_t keep_every,
                                               std::int64_t applied_updates);

/// Proven checkpoints, newest first: committed ones with fewer applied updates than this, so that a
/// run that went on from them has applied a step. Those without a good manifest are left out.
std::vector<CheckpointEntry> proven_checkpoints(const std::filesystem::path& checkpoints,
                                                std::int64_t applied_updates);

}  // namespace tessera::io
