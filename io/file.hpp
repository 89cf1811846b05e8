// Files as the rest of io/ sees them: exact transfers at a given offset, every error of the
// operating system checked (fsync's and close's too: a quota or a remote disk may fail only there)
// and thrown with the file's name. A file to read that is missing, truncated or no regular file is
// the user's data (DataError); a refusal by the system is an IoError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::io {

enum class OpenMode {
  read,    // must exist
  create,  // created, or cut to nothing; readable too
  update,  // must exist; read and write
};

/// A multiple of the sectors of all usual disks.
inline constexpr std::int64_t kSector = 4096;

enum class FileLock { shared, exclusive };

/// An open file descriptor. Reads and writes name their offset and keep no position, so one File
/// may be used by many threads at once.
class File {
 public:
  File(std::filesystem::path path, OpenMode mode);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  /// The same file past the page cache, for transfers whose memory, offset and length are multiples
  /// of kSector; nothing where the file system has no such access.
  std::optional<File> past_page_cache() const;

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  std::int64_t size() const;
  void resize(std::int64_t bytes);
  /// Makes a new file so long, with room on the disk for all of it, as far as the file system can
  /// promise that. IoError if the disk has less.
  void allocate(std::int64_t bytes);

  /// Fills `out` from [offset, offset + out.size()); DataError if the file ends before.
  void read(std::int64_t offset, std::span<std::byte> out) const;
  void write(std::int64_t offset, std::span<const std::byte> bytes);
  /// Locks the file against other processes (flock) until it is closed; false if another has it.
  /// True too where the file system has no locks.
  bool try_lock(FileLock kind) const;
  /// Whether path() is still this file, not another or none.
  bool has_its_name() const;
  /// Returns when the data is on the disk.
  void sync();
  /// The destructor closes too, but cannot report what close() does: a writer calls this.
  void close();

 private:
  File(std::filesystem::path path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor) {}

  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// A file that appears whole or not at all: bytes go to `path`.tmp, and publish() makes them
/// durable and gives them their name. Without publish() the destructor removes the partial file.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(AtomicFile&&) = default;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  std::int64_t position() const { return written_ + static_cast<std::int64_t>(buffer_.size()); }
  void append(std::span<const std::byte> bytes);
  void append(std::string_view text) { append(std::as_bytes(std::span(text))); }
  template <typename T>
  void append_value(const T& value) {
    append(std::as_bytes(std::span(&value, 1)));
  }
  void publish();

 private:
  void flush();

  std::filesystem::path path_;
  File file_;
  std::vector<std::byte> buffer_;
  std::int64_t written_ = 0;
  bool published_ = false;
};

/// Makes a file of this text, or replaces one: an AtomicFile.
void write_text(const std::filesystem::path& path, std::string_view text);

/// Refuses, with an IoError and before long work, what --out names and write_text() would put a
/// file in the place of: a device, a pipe or a directory, where `name` is one that the file may
/// have; and a file in no directory.
void check_out(const std::filesystem::path& out, std::string_view name);

/// Makes the names in a directory durable.
void sync_directory(const std::filesystem::path& directory);

/// Creates a directory and its parents, durably; no error if it is there.
void create_directories(const std::filesystem::path& directory);

/// As rename(2): what has the name `to` is replaced.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

bool path_exists(const std::filesystem::path& path);

/// Two names change places at once. False where the file system cannot do that.
bool exchange_paths(const std::filesystem::path& a, const std::filesystem::path& b);

/// Removes a directory with all in it, or a file; no error if it is not there.
void remove_tree(const std::filesystem::path& path);

/// The same, and the name is gone for good when it returns.
void remove_durably(const std::filesystem::path& path);

/// The directories, or the regular files, in a directory, in no order; none if it is not there.
std::vector<std::filesystem::path> subdirectories(const std::filesystem::path& directory);
std::vector<std::filesystem::path> files_in(const std::filesystem::path& directory);

/// A whole small file (JSON and the like). More than `max_bytes` is a DataError.
std::string read_text(const std::filesystem::path& path, std::int64_t max_bytes);

}  // namespace tessera::io
