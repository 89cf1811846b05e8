#include "io/scratch_directory.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <optional>

#include "core/error.hpp"
#include "io/system_calls.hpp"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;
constexpr std::chrono::minutes kYoung{10};

/// "tessera_HOST_": other hosts' directories on a disk that they share are theirs.
std::string prefix() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return fmt::format("tessera_{}_", host.data());
}

/// A new directory has this before its name until it is locked.
constexpr std::string_view kUnlocked = ".";

fs::path lock_file(const fs::path& directory) { return directory / "lock"; }

fs::path make_unlocked(const fs::path& parent) {
  std::string path = (parent / fmt::format("{}{}XXXXXX", kUnlocked, prefix())).string();
  if (::mkdtemp(path.data()) == nullptr) {
    const int error = errno;
    throw IoError(
        fmt::format("{}: no directory can be made there: {}", parent.string(), errno_text(error)));
  }
  return path;
}

/// Of a directory without a lock: whether its maker may be about to lock it.
bool is_young(const fs::path& directory) {
  std::error_code error;
  const auto age = fs::file_time_type::clock::now() - fs::last_write_time(directory, error);
  return error || age < kYoung;
}

/// The lock of a directory whose maker has gone, so that nobody else removes it too.
std::optional<File> lock_if_abandoned(const fs::path& directory) {
  try {
    File lock(lock_file(directory), OpenMode::update);
    if (lock.try_lock(FileLock::exclusive) && lock.has_its_name()) return lock;
  } catch (const Error&) {  // somebody is removing it
  }
  return std::nullopt;
}

/// Removes all but the lock, as far as possible. The lock goes last: what is left by a process that
/// is killed meanwhile will be found.
void remove_contents(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (it->path() != lock_file(directory)) system_calls::remove_tree(it->path());
  }
}

std::vector<fs::path> remove_abandoned(const fs::path& parent) {
  std::vector<fs::path> removed;
  for (const fs::path& directory : subdirectories(parent)) {
    const std::string whole = directory.filename().string();
    std::string_view name = whole;
    const bool unlocked = name.starts_with(kUnlocked);
    if (unlocked) name.remove_prefix(kUnlocked.size());
    if (!name.starts_with(prefix()) || (unlocked && is_young(directory))) continue;
    if (unlocked && !path_exists(lock_file(directory))) {
      system_calls::remove_tree(directory);  // its maker was killed before it made a lock
      continue;
    }
    const std::optional<File> lock = lock_if_abandoned(directory);
    if (!lock) continue;
    remove_contents(directory);
    remove_tree(directory);
    removed.push_back(directory);
  }
  return removed;
}

}  // namespace

ScratchDirectory::ScratchDirectory(const fs::path& parent, bool keep)
    : path_(make_unlocked(parent)), keep_(keep) {
  try {
    lock_ = std::make_unique<File>(lock_file(path_), OpenMode::create);
    lock_->try_lock(FileLock::exclusive);
    const fs::path locked = parent / path_.filename().string().substr(kUnlocked.size());
    rename_path(path_, locked);
    path_ = locked;
    const bool locks_work = !File(lock_file(path_), OpenMode::update).try_lock(FileLock::exclusive);
    if (locks_work) removed_ = remove_abandoned(parent);
  } catch (...) {
    system_calls::remove_tree(path_);
    throw;
  }
}

ScratchDirectory::~ScratchDirectory() {
  if (!lock_) return;  // moved from
  if (keep_) {
    system_calls::rename(path_, path_.parent_path() / ("kept_" + path_.filename().string()));
  } else {
    remove_contents(path_);
    system_calls::remove_tree(path_);
  }
}

}  // namespace tessera::io
