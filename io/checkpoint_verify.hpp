// What a checkpoint holds, and whether every byte is still right, without loading it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "io/checkpoint_manifest.hpp"

namespace tessera::io {

struct BadBlock {
  std::string file;
  std::string dataset;  // "master/..."; empty: the file as a whole, or outside its datasets
  std::int64_t offset;  // in the file
  std::int64_t bytes;
  std::string problem;
};

using VerifyProgress = std::function<void(std::int64_t bytes_done, std::int64_t bytes_total)>;

/// Reads every byte of a checkpoint and lists what is damaged, missing or unreadable; nothing in
/// the list means that all is as it was written. Throws DataError if the manifest itself is bad.
std::vector<BadBlock> verify_checkpoint(const std::filesystem::path& checkpoint,
                                        const VerifyProgress& progress = {});

struct StateSummary {
  std::string state;
  DType type;
  std::int64_t tensors, elements, bytes;
};

struct CheckpointSummary {
  CheckpointHeader header;
  std::vector<StateSummary> states;  // by name
  std::int64_t files, bytes;         // of the rank files
};

CheckpointSummary describe_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace tessera::io
