// The moment a checkpoint comes into being: when every rank's part is durable, one rank checks that
// they make a whole, writes model.h5 and manifest.json, and gives the directory its final name.
#pragma once

#include <filesystem>
#include <span>

#include "io/checkpoint_manifest.hpp"

namespace tessera::io {

/// `directory` is that of begin_checkpoint, `parts` what CheckpointWriter::finish returned, by
/// rank. Returns the final path; until then the directory is no checkpoint, and the ones before are
/// untouched. A checkpoint of the same step, if there is one, is replaced; clean_up_checkpoints()
/// removes it. Throws InternalError if
/// an element is held twice or by nobody, DataError if a rank's file cannot be seen from here,
/// IoError if the system refuses. Uses HDF5.
std::filesystem::path commit_checkpoint(const std::filesystem::path& directory,
                                        const CheckpointHeader& header,
                                        std::span<const RankPart> parts);

/// Writes model.h5: every tensor of every state as one virtual dataset /state/name over the rank
/// files beside it; and /parameters as a soft link to /master where forward uses the master
/// weights, which is when no rank holds parameters of their own.
void write_model_file(const std::filesystem::path& path, std::span<const RankPart> parts);

}  // namespace tessera::io
