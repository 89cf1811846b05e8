#include "io/checkpoint_hold.hpp"

#include "core/error.hpp"
#include "io/checkpoint_manifest.hpp"

namespace tessera::io {
namespace {

/// For an exclusive lock: NFS gives one only on what may be written, others on what may be read
/// too.
File open_to_lock(const std::filesystem::path& path) {
  try {
    return File(path, OpenMode::update);
  } catch (const IoError&) {  // protected, or another user's
    return File(path, OpenMode::read);
  }
}

}  // namespace

CheckpointHold::CheckpointHold(const std::filesystem::path& checkpoint)
    : manifest_(checkpoint / kManifestFile, OpenMode::read) {
  // Whoever removes a checkpoint locks its manifest, then gives the directory another name.
  if (manifest_.try_lock(FileLock::shared) && manifest_.has_its_name()) return;
  throw DataError(fmt::format("{}: was removed while it was being opened (checkpoint.keep)",
                              checkpoint.string()));
}

bool rename_unless_read(const std::filesystem::path& checkpoint, const std::filesystem::path& to) {
  const File manifest = open_to_lock(checkpoint / kManifestFile);
  if (!manifest.try_lock(FileLock::exclusive)) return false;
  rename_path(checkpoint, to);
  return true;
}

}  // namespace tessera::io
