// Identifies the bytes that a run was trained on, so that a restart notices when files of the same
// names hold others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/token_files.hpp"

namespace tessera::io {

/// A token file, or the index of one, or of its targets or labels.
struct DataFile {
  std::string path;  // for people
  std::int64_t bytes = 0;
  std::uint64_t hash = 0;  // of the whole of it, or of a sample of a large file
  bool operator==(const DataFile&) const = default;
};

/// The files of a corpus, in its order: each token file, followed by its index, targets and labels,
/// if it has such. Indices and labels are hashed whole, and tokens and targets of at most 16 MiB;
/// of larger ones 256 pieces of 64 KiB at equal distances, the first and the last among them. Where
/// there are more than 64 files each has fewer pieces, at least 16: so tokens cost about a gigabyte
/// of reading, or one MiB a file, but a change of a few of them in the midst of a large file may
/// pass.
std::vector<DataFile> identify(const TokenCorpus& corpus);
/// Another file that a run is trained on, hashed whole.
DataFile identify(const std::filesystem::path& file);

/// What differs, naming file and both values; nothing if all is the same. Paths are not compared.
std::optional<std::string> find_difference(std::span<const DataFile> saved,
                                           std::span<const DataFile> now);

}  // namespace tessera::io
