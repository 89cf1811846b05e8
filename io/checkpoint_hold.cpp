#include "io/checkpoint_hold.hpp"

#include "core/error.hpp"
#include "io/checkpoint_manifest.hpp"

namespace tessera {

CheckpointHold::CheckpointHold(const std::filesystem::path& checkpoint)
    : manifest_(checkpoint / kManifestFile, OpenMode::read) {
  // Whoever removes a checkpoint locks its manifest, then gives the directory another name.
  if (manifest_.try_lock(FileLock::shared) && manifest_.has_its_name()) return;
  throw DataError(fmt::format("{}: was removed while it was being opened (checkpoint.keep)",
                              checkpoint.string()));
}

bool rename_unless_read(const std::filesystem::path& checkpoint, const std::filesystem::path& to) {
  // NFS locks only what may be written.
  const File manifest(checkpoint / kManifestFile, OpenMode::update);
  if (!manifest.try_lock(FileLock::exclusive)) return false;
  rename_path(checkpoint, to);
  return true;
}

}  // namespace tessera
