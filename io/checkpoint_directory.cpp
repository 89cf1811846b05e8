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

[[noreturn]] void refused(std::string_view action, const fs::path& path, std::error_code error) {
  throw IoError(fmt::format("{}: cannot {}: {}", path.string(), action, error.message()));
}

std::vector<fs::path> subdirectories(const fs::path& directory) {
  std::vector<fs::path> all;
  std::error_code error;
  if (!fs::exists(directory, error)) return all;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (it->is_directory(error)) all.push_back(it->path());
  }
  if (error) refused("list", directory, error);
  return all;
}

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

bool is_valid(const CheckpointEntry& entry) {
  try {
    return Checkpoint::open(entry.path).header().step == entry.step;
  } catch (const DataError&) {  // not a checkpoint, which is the answer and not a failure
    return false;
  }
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) refused("remove", path, error);
}

}  // namespace

fs::path checkpoint_path(const fs::path& checkpoints, std::int64_t step) {
  return checkpoints / fmt::format("{}{:08}", kPrefix, step);
}

fs::path begin_checkpoint(const fs::path& checkpoints, std::int64_t step) {
  tessera::create_directories(checkpoints);
  for (const fs::path& path : subdirectories(checkpoints)) {
    const std::string name = path.filename().string();
    if (name.starts_with(kPrefix) && name.ends_with(kTemporary)) remove_tree(path);
  }
  fs::path fresh = checkpoint_path(checkpoints, step);
  fresh += kTemporary;
  tessera::create_directories(fresh);
  return fresh;
}

std::vector<CheckpointEntry> list_checkpoints(const fs::path& checkpoints) {
  std::vector<CheckpointEntry> entries;
  for (const fs::path& path : subdirectories(checkpoints)) {
    if (const auto step = step_of(path)) entries.push_back({*step, path});
  }
  std::erase_if(entries, [](const CheckpointEntry& entry) { return !is_valid(entry); });
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.step > b.step; });
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
    for (int n = 2; fs::exists(aside); ++n) {
      aside = entry.path;
      aside += fmt::format(".abandoned{}", n);
    }
    std::error_code error;
    fs::rename(entry.path, aside, error);
    if (error) refused("rename", entry.path, error);
    entry.path = aside;
  }
  return later;
}

std::vector<CheckpointEntry> prune_checkpoints(const fs::path& checkpoints, std::int64_t keep,
                                               std::int64_t keep_every) {
  TESSERA_CHECK(keep >= 0 && keep_every >= 0, "keep = {}, keep_every = {}", keep, keep_every);
  std::vector<CheckpointEntry> old;
  if (keep == 0) return old;
  old = list_checkpoints(checkpoints);
  old.erase(old.begin(), old.begin() + std::min(keep, static_cast<std::int64_t>(old.size())));
  std::erase_if(old, [&](const CheckpointEntry& entry) {
    return keep_every > 0 && entry.step % keep_every == 0;
  });
  for (const CheckpointEntry& entry : old) {
    // Renamed first: a removal that is interrupted leaves no half checkpoint under a good name.
    fs::path doomed = entry.path;
    doomed += kTemporary;
    remove_tree(doomed);
    std::error_code error;
    fs::rename(entry.path, doomed, error);
    if (error) refused("rename", entry.path, error);
    remove_tree(doomed);
  }
  return old;
}

}  // namespace tessera
