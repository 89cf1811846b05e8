#include "io/checkpoint_directory.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "core/error.hpp"
#include "io/checkpoint_reader.hpp"
#include "io/file.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "step_";
constexpr std::string_view kTemporary = ".tmp";
constexpr std::string_view kReplaced = ".replaced.tmp";

/// The step in a name "step_00000100".
std::optional<std::int64_t> step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc() || stop != end || step < 0) return std::nullopt;
  return checkpoint_path(path.parent_path(), step) == path ? std::optional(step) : std::nullopt;
}

/// What the manifest says, if `path` holds a checkpoint of this step.
std::optional<CheckpointHeader> header_of(const fs::path& path, std::int64_t step) {
  try {
    CheckpointHeader header = read_manifest(path).header;
    if (header.step == step) return header;
  } catch (const DataError&) {  // not a checkpoint, which is the answer and not a failure
  }
  return std::nullopt;
}

/// Committed checkpoints with a good manifest, newest first, and the updates applied before each.
struct Updated {
  CheckpointEntry entry;
  std::int64_t applied_updates;
};
std::vector<Updated> with_updates(const fs::path& checkpoints) {
  std::vector<Updated> all;
  for (CheckpointEntry& entry : committed_checkpoints(checkpoints)) {
    if (const auto header = header_of(entry.path, entry.step))
      all.push_back({std::move(entry), header->applied_updates});
  }
  return all;
}

/// Whether it has a good manifest and files of the right size.
bool is_valid(const CheckpointEntry& entry) {
  if (!header_of(entry.path, entry.step)) return false;
  try {
    Checkpoint::open(entry.path).check_files();
    return true;
  } catch (const DataError&) {
    return false;
  }
}

/// The step in a name "step_00000100.replaced.tmp".
std::optional<std::int64_t> replaced_step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.ends_with(kReplaced)) return std::nullopt;
  return step_of(path.parent_path() / name.substr(0, name.size() - kReplaced.size()));
}

}  // namespace

fs::path checkpoint_path(const fs::path& checkpoints, std::int64_t step) {
  return checkpoints / fmt::format("{}{:08}", kPrefix, step);
}

fs::path replaced_path(const fs::path& checkpoint) {
  fs::path path = checkpoint;
  path += kReplaced;
  return path;
}

void clean_up_checkpoints(const fs::path& checkpoints) {
  for (const fs::path& path : subdirectories(checkpoints)) {
    const auto step = replaced_step_of(path);
    if (!step) continue;
    const fs::path good = checkpoint_path(checkpoints, *step);
    if (!path_exists(good) && header_of(path, *step)) rename_path(path, good);
  }
  std::vector<fs::path> doomed = subdirectories(checkpoints);
  std::erase_if(doomed, [](const fs::path& path) {
    const std::string name = path.filename().string();
    return !name.starts_with(kPrefix) || !name.ends_with(kTemporary);
  });
  if (doomed.empty()) return;
  // Renames to these names must be durable before anything is removed: otherwise a crash could
  // bring a good name back to a directory that is half removed.
  sync_directory(checkpoints);
  for (const fs::path& path : doomed) remove_tree(path);
}

fs::path begin_checkpoint(const fs::path& checkpoints, std::int64_t step) {
  io::create_directories(checkpoints);
  clean_up_checkpoints(checkpoints);
  fs::path fresh = checkpoint_path(checkpoints, step);
  fresh += kTemporary;
  io::create_directories(fresh);
  return fresh;
}

std::vector<CheckpointEntry> committed_checkpoints(const fs::path& checkpoints) {
  std::vector<CheckpointEntry> entries;
  for (const fs::path& path : subdirectories(checkpoints)) {
    const auto step = step_of(path);
    if (step && path_exists(path / kManifestFile)) entries.push_back({*step, path});
  }
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.step > b.step; });
  return entries;
}

std::vector<CheckpointEntry> list_checkpoints(const fs::path& checkpoints) {
  std::vector<CheckpointEntry> entries = committed_checkpoints(checkpoints);
  std::erase_if(entries, [](const CheckpointEntry& entry) { return !is_valid(entry); });
  return entries;
}

std::optional<HeldCheckpoint> hold_newest(const fs::path& checkpoints) {
  // All may be removed while they are listed or after, but only once a newer one was committed,
  // which the next listing finds.
  for (int attempts = 0; attempts < 10; ++attempts) {
    for (const CheckpointEntry& entry : committed_checkpoints(checkpoints)) {
      if (!is_valid(entry)) continue;
      try {
        return HeldCheckpoint{entry.path, CheckpointHold(entry.path)};
      } catch (const DataError&) {
        continue;
      }
    }
  }
  return std::nullopt;
}

std::vector<CheckpointEntry> set_aside_after(const fs::path& checkpoints, std::int64_t step) {
  std::vector<CheckpointEntry> later;
  for (const fs::path& path : subdirectories(checkpoints)) {
    if (const auto s = step_of(path); s && *s > step) later.push_back({*s, path});
  }
  for (CheckpointEntry& entry : later) {
    fs::path aside = entry.path;
    aside += ".abandoned";
    std::error_code error;
    for (int n = 2; fs::exists(aside, error); ++n) {
      aside = entry.path;
      aside += fmt::format(".abandoned{}", n);
    }
    rename_path(entry.path, aside);
    entry.path = aside;
  }
  if (!later.empty()) sync_directory(checkpoints);
  return later;
}

std::vector<CheckpointEntry> prune_checkpoints(const fs::path& checkpoints, std::int64_t keep,
                                               std::int64_t keep_every,
                                               std::int64_t applied_updates) {
  TESSERA_CHECK(keep >= 0 && keep_every >= 0, "keep = {}, keep_every = {}", keep, keep_every);
  std::vector<CheckpointEntry> removed;
  clean_up_checkpoints(checkpoints);
  if (keep == 0) return removed;
  bool proven = false;  // whether a proven checkpoint was found, which stays
  std::int64_t newer = 0;
  for (const Updated& checkpoint : with_updates(checkpoints)) {
    const auto& [step, path] = checkpoint.entry;
    const bool newest = newer++ < keep;
    const bool milestone = keep_every > 0 && step % keep_every == 0;
    const bool proves = !proven && checkpoint.applied_updates < applied_updates;
    proven = proven || proves;
    if (newest || milestone || proves) continue;
    // Renamed first, so that an interrupted removal leaves no half checkpoint under a good name.
    fs::path doomed = path;
    doomed += kTemporary;
    if (rename_unless_read(path, doomed)) removed.push_back(checkpoint.entry);
  }
  clean_up_checkpoints(checkpoints);
  return removed;
}

std::vector<CheckpointEntry> proven_checkpoints(const fs::path& checkpoints,
                                                std::int64_t applied_updates) {
  std::vector<CheckpointEntry> proven;
  for (Updated& checkpoint : with_updates(checkpoints)) {
    if (checkpoint.applied_updates < applied_updates) proven.push_back(std::move(checkpoint.entry));
  }
  return proven;
}

}  // namespace tessera::io
