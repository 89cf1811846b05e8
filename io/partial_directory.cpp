#include "io/partial_directory.hpp"

#include <fmt/format.h>

#include "core/error.hpp"
#include "io/file.hpp"

namespace tessera::io {
namespace fs = std::filesystem;

fs::path empty_directory(fs::path directory) {
  if (!directory.has_filename()) directory = directory.parent_path();  // "model/"
  if (fs::exists(directory) && !(fs::is_directory(directory) && fs::is_empty(directory))) {
    throw DataError(
        fmt::format("{}: is there already, and an export overwrites nothing: name "
                    "another directory",
                    directory.string()));
  }
  return directory;
}

PartialDirectory::PartialDirectory(fs::path path) : path_(std::move(path)) {
  if (fs::exists(path_)) {
    throw DataError(fmt::format(
        "{}: left over from an export that was interrupted: remove it first", path_.string()));
  }
  io::create_directories(path_);
}

PartialDirectory::~PartialDirectory() {
  try {
    io::remove_tree(path_);
  } catch (const Error&) {  // of a disk that fails; what is left over is said by the next export
  }
}

void PartialDirectory::publish(const fs::path& final_path) {
  rename_path(path_, final_path);  // replaces an empty directory, never a full one
  sync_directory(final_path.has_parent_path() ? final_path.parent_path() : fs::path("."));
}

}  // namespace tessera::io
