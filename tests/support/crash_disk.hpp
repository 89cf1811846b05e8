// A disk that may lose power at any moment. What the program does to the files below a directory is
// recorded by io/system_calls' witness while it happens for real; afterwards the directory is built
// again as it may be found after a crash at each of those moments.
//
// What was not synced is lost or kept as a file system may choose: of a file every sector of every
// write by itself (so writes are dropped, reordered and torn) and the size, of a directory every
// name that was made, changed or removed, unless the one change builds on the other (same name, or
// same file). fsync of a file keeps its bytes and not its name; fsync of a directory keeps its
// names and nothing of what they name. Sectors that were never written are zeros.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/system_calls.hpp"

namespace tessera::test {

/// A fresh directory for one test, removed with all it holds: in memory, where there is such a
/// place, for thousands of files are made and synced here.
class FastDirectory {
 public:
  FastDirectory();
  FastDirectory(const FastDirectory&) = delete;
  FastDirectory& operator=(const FastDirectory&) = delete;
  ~FastDirectory();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// Files by their paths below a directory; a directory has no bytes.
using FileTree = std::map<std::string, std::optional<std::string>>;

FileTree read_tree(const std::filesystem::path& root);
/// `root` must be empty or not there.
void write_tree(const FileTree& tree, const std::filesystem::path& root);

class CrashDisk {
 public:
  /// What is below `root` now is durable. One at a time records.
  explicit CrashDisk(std::filesystem::path root);
  ~CrashDisk();
  CrashDisk(const CrashDisk&) = delete;
  CrashDisk& operator=(const CrashDisk&) = delete;

  /// Ends recording. Throws if something below `root` is not what the recorded calls made of it:
  /// whatever writes to a run's files must do so through io/system_calls.
  void stop();
  /// Calls recorded so far: a promise that is made now holds after every crash from here on.
  std::size_t changes() const;
  /// For messages: the call, and the file that it was about.
  std::string describe(std::size_t change) const;

  /// Trees that a crash right after the first `changes` calls may leave, each once: all there are,
  /// or, of more than `samples`, the extremes and as many others as that, which the seed chooses.
  std::vector<FileTree> after_crash(std::size_t changes, int samples, std::uint64_t seed) const;

  /// check(changes before the crash, what it left) for every moment from `first` on, each time with
  /// a fresh directory that holds what the crash left.
  void each_crash(int samples, std::uint64_t seed,
                  const std::function<void(std::size_t, const std::filesystem::path&)>& check,
                  std::size_t first = 0) const;

 private:
  struct Change {
    IoCall call;
    std::string path, to;
    std::string written;
    std::int64_t at = 0;
    bool emptied = false;
  };
  class Model;

  void record(const io::IoChange& change);
  std::optional<std::string> below_root(const std::filesystem::path& path) const;

  std::filesystem::path root_;
  FileTree before_;
  mutable std::mutex mutex_;  // of changes, which come from any thread
  std::vector<Change> changes_;
  bool recording_ = true;
};

}  // namespace tessera::test
