#include "io/checkpoint_commit.hpp"

#include "core/error.hpp"
#include "io/checkpoint_blocks.hpp"
#include "io/checkpoint_directory.hpp"
#include "io/checkpoint_reader.hpp"
#include "io/file.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

/// Renames `from` to `to`. If another checkpoint of the step has that name, the two names are
/// exchanged in one call, so that at every moment one of them has it; the old one is left for
/// clean_up_checkpoints().
void take_name(const fs::path& from, const fs::path& to) {
  if (!path_exists(to)) return rename_path(from, to);
  if (exchange_paths(from, to)) return;
  // NFS and some other file systems cannot exchange names. If a crash comes between these two
  // renames, clean_up_checkpoints() undoes the first.
  const fs::path old = replaced_path(to);
  rename_path(to, old);
  try {
    rename_path(from, to);
  } catch (const Error&) {
    rename_path(old, to);
    throw;
  }
}

}  // namespace

fs::path commit_checkpoint(const fs::path& directory, const CheckpointHeader& header,
                           std::span<const RankPart> parts) {
  if (const auto problem = find_problem(parts))
    throw InternalError(
        fmt::format("{}: not a whole checkpoint: {}", directory.string(), *problem));
  for (const RankPart& part : parts) {
    try {
      check_file_size(directory / rank_file_name(part.rank), part.file_bytes);
    } catch (Error& error) {
      error.add_context(
          fmt::format("rank {}'s file, seen from the rank that commits (is the run "
                      "directory on a file system that all nodes share?)",
                      part.rank));
      throw;
    }
  }

  Manifest manifest{.header = header, .parts = {parts.begin(), parts.end()}};
  write_model_file(directory / kModelFile, parts);
  File model(directory / kModelFile, OpenMode::update);
  model.sync();
  manifest.model_bytes = model.size();
  manifest.model_checksum = hash_range(model, {0, manifest.model_bytes});
  model.close();

  write_text(directory / kManifestFile, to_text(manifest));  // syncs the directory too

  const fs::path final_path = checkpoint_path(directory.parent_path(), header.step);
  take_name(directory, final_path);
  sync_directory(final_path.parent_path());
  return final_path;
}

}  // namespace tessera::io
