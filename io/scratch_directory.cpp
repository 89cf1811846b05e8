#include "io/scratch_directory.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>

#include "core/error.hpp"
#include "io/system_calls.hpp"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;
constexpr std::chrono::minutes kYoung{1};

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
  std::string path = (parent / (std::string(kUnlocked) + prefix() + "XXXXXX")).string();
  if (::mkdtemp(path.data()) == nullptr) {
    const int error = errno;
    throw IoError(fmt::format("{}: no directory can be made there: {}", parent.string(),
                              errno_text(error)));
  }
  return path;
}

/// Whether the one who made the directory has gone.
bool is_abandoned(const fs::path& directory) {
  if (directory.filename().string().starts_with(kUnlocked)) {  // its maker may be about to lock it
    std::error_code error;
    const auto age = fs::file_time_type::clock::now() - fs::last_write_time(directory, error);
    if (error || age < kYoung) return false;
  }
  try {
    return File(lock_file(directory), OpenMode::update).try_lock(FileLock::exclusive);
  } catch (const Error&) {  // its maker is removing it
    return false;
  }
}

std::vector<fs::path> remove_abandoned(const fs::path& parent) {
  std::vector<fs::path> removed;
  for (const fs::path& directory : subdirectories(parent)) {
    std::string_view name = directory.filename().native();
    if (name.starts_with(kUnlocked)) name.remove_prefix(kUnlocked.size());
    if (!name.starts_with(prefix()) || !is_abandoned(directory)) continue;
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
    const bool locks_work =
        !File(lock_file(path_), OpenMode::update).try_lock(FileLock::exclusive);
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
    system_calls::remove_tree(path_);
  }
}

}  // namespace tessera::io
