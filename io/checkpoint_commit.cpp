#include "io/checkpoint_commit.hpp"

#include "core/error.hpp"
#include "io/checkpoint_blocks.hpp"
#include "io/checkpoint_directory.hpp"
#include "io/checkpoint_reader.hpp"
#include "io/file.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

/// A step saved again (after going back to an earlier checkpoint) replaces the old one. A crash
/// between the two renames leaves neither, but the checkpoint that the run went back to.
void rename_over(const fs::path& from, const fs::path& to) {
  fs::path old = to;
  old += ".replaced.tmp";
  const bool replaces = fs::exists(to);
  if (replaces) rename_path(to, old);
  rename_path(from, to);
  sync_directory(to.parent_path());
  if (replaces) remove_tree(old);
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

  AtomicFile file(directory / kManifestFile);
  file.append(to_text(manifest));
  file.publish();  // syncs the directory too

  const fs::path final_path = checkpoint_path(directory.parent_path(), header.step);
  rename_over(directory, final_path);
  return final_path;
}

}  // namespace tessera
