// A directory for files that mean nothing once their process has ended.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "io/file.hpp"

namespace tessera::io {

/// A new directory `tessera_HOST_XXXXXX` in `parent`, which it locks as long as it lives; then it
/// is removed or, if it is to be kept, renamed to `kept_...`. Those of processes of this host that
/// have ended without removing them are removed first, where the file system has locks.
class ScratchDirectory {
 public:
  /// Throws IoError where no directory can be made, such as in a parent that does not exist.
  explicit ScratchDirectory(const std::filesystem::path& parent, bool keep = false);
  ~ScratchDirectory();
  ScratchDirectory(ScratchDirectory&&) = default;
  ScratchDirectory& operator=(ScratchDirectory&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// What others had left there, and was removed.
  const std::vector<std::filesystem::path>& removed() const { return removed_; }

 private:
  std::filesystem::path path_;
  bool keep_;
  std::unique_ptr<File> lock_;
  std::vector<std::filesystem::path> removed_;
};

}  // namespace tessera::io
