#include "io/checkpoint_hold.hpp"

#include "core/error.hpp"
#include "io/checkpoint_manifest.hpp"

namespace tessera::io {
namespace {

/// Opens a file to be locked exclusively. NFS gives such a lock only on a file that is open for
/// writing; other file systems also on one that may only be read.
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
  // Whoever removes a checkpoint first locks its manifest, then renames the directory. So with the
  // lock, and the old name still there, the checkpoint stays.
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
