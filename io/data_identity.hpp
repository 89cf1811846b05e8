// Which bytes a run was trained on, so that a restart can tell when the same names hold others.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/token_files.hpp"

namespace tessera {

/// A token file, or the index of one.
struct DataFile {
  std::string path;  // for people
  std::int64_t bytes = 0;
  std::uint64_t hash = 0;  // of the whole of it, or of a sample of a large file
  bool operator==(const DataFile&) const = default;
};

/// The files of a corpus, in its order: each token file, followed by its index if it has one.
/// Indices and files of at most 16 MiB are hashed whole, of larger ones up to 256 pieces of 64 KiB
/// at equal distances, the first and the last among them; fewer where there are more than 64 files,
/// at least 16. So a corpus of any size costs about a gigabyte of reading, but a change of a few
/// tokens in the midst of a large file may pass.
std::vector<DataFile> identify(const TokenCorpus& corpus);

/// What differs, naming file and both values; nothing if all is the same. Paths are not compared.
std::optional<std::string> find_difference(std::span<const DataFile> saved,
                                           std::span<const DataFile> now);

}  // namespace tessera
