// Directories that an export makes: they appear whole or not at all.
#pragma once

#include <filesystem>
#include <string_view>

namespace tessera::io {

/// The directory without a slash at its end; DataError if there is something in it.
std::filesystem::path empty_directory(std::filesystem::path directory);

/// A directory that gets its final name when it is complete, and is removed otherwise.
class PartialDirectory {
 public:
  /// DataError where there is one.
  explicit PartialDirectory(std::filesystem::path path);
  PartialDirectory(const PartialDirectory&) = delete;
  PartialDirectory& operator=(const PartialDirectory&) = delete;
  ~PartialDirectory();

  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

  void publish(const std::filesystem::path& final_path);

 private:
  std::filesystem::path path_;
};

}  // namespace tessera::io
