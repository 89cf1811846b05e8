#include "io/checkpoint_directory.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "core/error.hpp"
#include "io/checkpoint_reader.hpp"
#include "io/file.hpp"

namespace tessera {
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

/// Whether `path` holds a checkpoint of this step, by its manifest.
bool has_manifest_of(const fs::path& path, std::int64_t step) {
  try {
    return read_manifest(path).header.step == step;
  } catch (const DataError&) {  // not a checkpoint, which is the answer and not a failure
    return false;
  }
}

bool has_all_files(const fs::path& path) {
  try {
    Checkpoint::open(path).check_files();
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
    if (!path_exists(good) && has_manifest_of(path, *step)) rename_path(path, good);
  }
  std::vector<fs::path> doomed = subdirectories(checkpoints);
  std::erase_if(doomed, [](const fs::path& path) {
    const std::string name = path.filename().string();
    return !name.starts_with(kPrefix) || !name.ends_with(kTemporary);
  });
  if (doomed.empty()) return;
  // A crash must not give a good name back to what is half removed by then.
  sync_directory(checkpoints);
  for (const fs::path& path : doomed) remove_tree(path);
}

fs::path begin_checkpoint(const fs::path& checkpoints, std::int64_t step) {
  tessera::create_directories(checkpoints);
  clean_up_checkpoints(checkpoints);
  fs::path fresh = checkpoint_path(checkpoints, step);
  fresh += kTemporary;
  tessera::create_directories(fresh);
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
  std::erase_if(entries, [](const CheckpointEntry& entry) {
    return !has_manifest_of(entry.path, entry.step) || !has_all_files(entry.path);
  });
  return entries;
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
                                               std::int64_t keep_every) {
  TESSERA_CHECK(keep >= 0 && keep_every >= 0, "keep = {}, keep_every = {}", keep, keep_every);
  std::vector<CheckpointEntry> old;
  clean_up_checkpoints(checkpoints);
  if (keep == 0) return old;
  old = committed_checkpoints(checkpoints);
  std::erase_if(old, [](const auto& entry) { return !has_manifest_of(entry.path, entry.step); });
  old.erase(old.begin(), old.begin() + std::min(keep, static_cast<std::int64_t>(old.size())));
  std::erase_if(old, [&](const CheckpointEntry& entry) {
    return keep_every > 0 && entry.step % keep_every == 0;
  });
  for (const CheckpointEntry& entry : old) {
    // Renamed first: a removal that is interrupted leaves no half checkpoint under a good name.
    fs::path doomed = entry.path;
    doomed += kTemporary;
    rename_path(entry.path, doomed);
  }
  clean_up_checkpoints(checkpoints);
  return old;
}

}  // namespace tessera
