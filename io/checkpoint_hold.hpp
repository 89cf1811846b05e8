// Readers beside a run that prunes: whoever reads a checkpoint holds a shared lock on its manifest,
// and pruning leaves alone what it cannot lock for itself. Where the file system has no locks (some
// network file systems say so), nothing is held, and a reader may find that a checkpoint has gone.
#pragma once

#include <filesystem>

#include "io/file.hpp"

namespace tessera::io {

/// While it lives, prune_checkpoints() of any process leaves the checkpoint where it is.
class CheckpointHold {
 public:
  /// Throws DataError if the directory has no manifest, or is just being removed.
  explicit CheckpointHold(const std::filesystem::path& checkpoint);

 private:
  File manifest_;
};

/// Renames a checkpoint, after which no CheckpointHold can be had of it; false if somebody has one.
bool rename_unless_read(const std::filesystem::path& checkpoint, const std::filesystem::path& to);

}  // namespace tessera::io
