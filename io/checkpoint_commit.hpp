// The commit of a checkpoint. When every rank's part is durable, one rank checks that the parts
// make a whole, writes model.h5 and manifest.json, syncs them, and only then renames the directory
// to its final name. So whatever has that name is complete, also after a crash.
#pragma once

#include <filesystem>
#include <span>

#include "io/checkpoint_manifest.hpp"

namespace tessera::io {

/// `directory` is that of begin_checkpoint, `parts` is what each rank's CheckpointWriter::finish
/// has returned, by rank. Returns the final path. Until the rename the directory is no checkpoint
/// and earlier ones are untouched. An older checkpoint of the same step is replaced, and removed by
/// clean_up_checkpoints(). Throws InternalError if an element is held twice or by nobody, DataError
/// if a rank's file cannot be seen from here, IoError if the system refuses. Uses HDF5.
std::filesystem::path commit_checkpoint(const std::filesystem::path& directory,
                                        const CheckpointHeader& header,
                                        std::span<const RankPart> parts);

/// Writes model.h5: every tensor of every state as one virtual dataset /state/name over the rank
/// files beside it. If no rank holds parameters of their own, forward uses the master weights, and
/// /parameters is a soft link to /master.
void write_model_file(const std::filesystem::path& path, std::span<const RankPart> parts);

}  // namespace tessera::io
