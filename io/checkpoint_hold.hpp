// Keeps pruning away from a checkpoint that is being read. A reader holds a shared lock on its
// manifest, and pruning leaves a checkpoint alone whose manifest it cannot lock exclusively. Where
// the file system has no locks (some network file systems say so), nothing is held, and a reader
// may find that a checkpoint has gone.
#pragma once

#include <filesystem>

#include "io/file.hpp"

namespace tessera::io {

/// While this object lives, prune_checkpoints() of any process leaves the checkpoint where it is.
class CheckpointHold {
 public:
  /// Throws DataError if the directory has no manifest, or is just being removed.
  explicit CheckpointHold(const std::filesystem::path& checkpoint);

 private:
  File manifest_;
};

/// Renames a checkpoint unless somebody holds it; returns whether it was renamed. Afterwards nobody
/// can hold it under its old name.
bool rename_unless_read(const std::filesystem::path& checkpoint, const std::filesystem::path& to);

}  // namespace tessera::io
