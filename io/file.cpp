#include "io/file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/error.hpp"
#include "core/regular_file.hpp"
#include "io/system_calls.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kAppendBuffer = std::size_t{1} << 20;

std::string temporary_name(const fs::path& path) { return path.string() + ".tmp"; }

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

[[noreturn]] void fail_with(const std::string& message, int error) {
  if (error == ENOMEM) throw MemoryError(message);
  throw IoError(message);
}

[[noreturn]] void fail(std::string_view action, const fs::path& path, int error) {
  fail_with(fmt::format("{}: cannot {}: {}", path.string(), action, errno_text(error)), error);
}

/// A file to read that is missing, or is something else, is the user's data (DataError); what the
/// system refuses to open or create is an IoError.
[[noreturn]] void fail_to_open(const fs::path& path, OpenMode mode, int error) {
  const bool missing = error == ENOENT || error == ENOTDIR;
  const std::string message =
      fmt::format("{}: cannot open: {}{}", path.string(), why_not_opened(path, error),
                  missing ? full_path_text(path) : "");
  const bool other = error == ENOENT || error == ENOTDIR || error == EISDIR || error == ENXIO;
  if (mode == OpenMode::read && other) throw DataError(message);
  fail_with(message, error);
}

int flags_of(OpenMode mode) {
  switch (mode) {
    case OpenMode::read: return O_RDONLY;
    case OpenMode::create: return O_RDWR | O_CREAT | O_TRUNC;
    case OpenMode::update: return O_RDWR;
  }
  return O_RDONLY;
}

}  // namespace

File::File(fs::path path, OpenMode mode) : path_(std::move(path)) {
  descriptor_ = system_calls::open(path_, flags_of(mode));
  if (descriptor_ < 0) fail_to_open(path_, mode, errno);
  const std::string problem = why_not_regular(system_calls::mode(descriptor_));
  if (problem.empty()) return;
  ::close(descriptor_);
  throw DataError(fmt::format("{}: cannot open: {}", path_.string(), problem));
}

File::File(File&& other) noexcept
    : path_(std::exchange(other.path_, {})), descriptor_(std::exchange(other.descriptor_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::optional<File> File::past_page_cache() const {
  const int descriptor = system_calls::open(path_, O_RDWR | O_DIRECT);
  if (descriptor >= 0) return File(path_, descriptor);
  if (errno == EINVAL) return std::nullopt;
  fail_to_open(path_, OpenMode::update, errno);
}

std::int64_t File::size() const {
  const std::int64_t bytes = system_calls::size(descriptor_, path_);
  if (bytes < 0) fail("examine", path_, errno);
  return bytes;
}

void File::resize(std::int64_t bytes) {
  if (system_calls::resize(descriptor_, path_, bytes) != 0) fail("resize", path_, errno);
}

void File::allocate(std::int64_t bytes) {
  if (bytes == 0) return resize(0);
  if (system_calls::allocate(descriptor_, path_, bytes) == 0) return;
  if (errno != EOPNOTSUPP) fail(fmt::format("reserve {} bytes", bytes), path_, errno);
  std::error_code error;
  const auto free = fs::space(parent_of(path_), error).available;
  if (!error && free < static_cast<std::uintmax_t>(bytes))
    fail(fmt::format("reserve {} bytes ({} are free)", bytes, free), path_, ENOSPC);
  resize(bytes);
}

void File::read(std::int64_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {  // one call moves at most 0x7ffff000 bytes
    const ssize_t n = system_calls::read(descriptor_, path_, out.data() + done, out.size() - done,
                                         offset + static_cast<std::int64_t>(done));
    if (n < 0) fail("read", path_, errno);
    if (n == 0) {
      throw DataError(fmt::format("{}: ends at byte {}, but bytes {} to {} are needed: truncated?",
                                  path_.string(), offset + static_cast<std::int64_t>(done), offset,
                                  offset + static_cast<std::int64_t>(out.size())));
    }
    done += static_cast<std::size_t>(n);
  }
}

void File::write(std::int64_t offset, std::span<const std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        system_calls::write(descriptor_, path_, bytes.data() + done, bytes.size() - done,
                            offset + static_cast<std::int64_t>(done));
    if (n < 0) fail("write", path_, errno);
    done += static_cast<std::size_t>(n);
  }
}

bool File::try_lock(FileLock kind) const {
  if (system_calls::lock(descriptor_, path_, kind == FileLock::exclusive ? LOCK_EX : LOCK_SH) == 0)
    return true;
  switch (errno) {
    case EWOULDBLOCK: return false;
    case ENOLCK:
    case ENOSYS:
    case ENOTSUP:
    case EINVAL: return true;
    default: fail("lock", path_, errno);
  }
}

bool File::has_its_name() const {
  struct stat named {
  }, open{};
  if (::fstat(descriptor_, &open) != 0) fail("examine", path_, errno);
  return ::stat(path_.c_str(), &named) == 0 && named.st_dev == open.st_dev &&
         named.st_ino == open.st_ino;
}

void File::sync() {
  if (system_calls::sync(descriptor_, path_) != 0) fail("sync", path_, errno);
}

void File::close() {
  if (system_calls::close(std::exchange(descriptor_, -1), path_) != 0) fail("close", path_, errno);
}

AtomicFile::AtomicFile(fs::path path)
    : path_(std::move(path)), file_(temporary_name(path_), OpenMode::create) {}

AtomicFile::~AtomicFile() {
  if (!published_ && !file_.path().empty()) system_calls::remove_tree(file_.path());
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kAppendBuffer) flush();
  if (bytes.size() > kAppendBuffer) {
    file_.write(written_, bytes);
    written_ += static_cast<std::int64_t>(bytes.size());
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void AtomicFile::flush() {
  file_.write(written_, buffer_);
  written_ += static_cast<std::int64_t>(buffer_.size());
  buffer_.clear();
}

void AtomicFile::publish() {
  flush();
  file_.sync();
  file_.close();
  rename_path(file_.path(), path_);
  published_ = true;
  sync_directory(parent_of(path_));
}

void write_text(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.append(text);
  file.publish();
}

void check_out(const fs::path& out, std::string_view name) {
  std::error_code ignored;
  const auto kind = fs::status(out, ignored).type();
  if (!out.has_filename() || kind == fs::file_type::directory) {
    throw IoError(fmt::format("--out \"{}\" names a directory: add the file's name, like {}",
                              out.string(), (out / name).string()));
  }
  if (kind != fs::file_type::not_found && kind != fs::file_type::regular)
    throw IoError(fmt::format("--out {} is a device or a pipe: name a file", out.string()));
  if (const fs::path parent = out.parent_path();
      !parent.empty() && !fs::is_directory(parent, ignored))
    throw IoError(
        fmt::format("--out {}: there is no directory {}: make it", out.string(), parent.string()));
}

void sync_directory(const fs::path& directory) {
  const int descriptor = system_calls::open(directory, O_RDONLY | O_DIRECTORY);
  if (descriptor < 0) fail("open", directory, errno);
  const int result = system_calls::sync(descriptor, directory);
  const int error = errno;
  ::close(descriptor);
  // Some network file systems know no fsync of a directory and say so.
  if (result != 0 && error != EINVAL) fail("sync", directory, error);
}

void create_directories(const fs::path& directory) {
  std::vector<fs::path> missing;
  for (fs::path path = directory; !path.empty() && !path_exists(path); path = path.parent_path())
    missing.push_back(path);
  if (system_calls::create_directories(directory) != 0) {
    throw IoError(
        fmt::format("cannot create directory {}: {}", directory.string(), errno_text(errno)));
  }
  for (const fs::path& path : missing) sync_directory(parent_of(path));
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (system_calls::rename(from, to) != 0)
    fail(fmt::format("rename to {}", to.string()), from, errno);
}

bool path_exists(const fs::path& path) {
  std::error_code error;
  const auto type = fs::status(path, error).type();
  if (error && type != fs::file_type::not_found) fail("examine", path, error.value());
  return type != fs::file_type::not_found;
}

bool exchange_paths(const fs::path& a, const fs::path& b) {
  if (system_calls::exchange(a, b) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS) return false;
  fail(fmt::format("exchange with {}", b.string()), a, errno);
}

void remove_tree(const fs::path& path) {
  if (system_calls::remove_tree(path) != 0) fail("remove", path, errno);
}

void remove_durably(const fs::path& path) {
  if (!path_exists(path)) return;
  remove_tree(path);
  sync_directory(parent_of(path));
}

/// The entries of a directory for which `wanted` holds.
static std::vector<fs::path> entries_of(const fs::path& directory,
                                        bool (*wanted)(const fs::directory_entry&,
                                                       std::error_code&)) {
  if (system_calls::list(directory) != 0) fail("list", directory, errno);
  std::vector<fs::path> all;
  if (!path_exists(directory)) return all;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;  // meanwhile removed by others, or a link to nowhere
    if (wanted(*it, gone)) all.push_back(it->path());
  }
  if (error) fail("list", directory, error.value());
  return all;
}

std::vector<fs::path> subdirectories(const fs::path& directory) {
  return entries_of(directory, [](const fs::directory_entry& e, std::error_code& gone) {
    return e.is_directory(gone);
  });
}

std::vector<fs::path> files_in(const fs::path& directory) {
  return entries_of(directory, [](const fs::directory_entry& e, std::error_code& gone) {
    return e.is_regular_file(gone);
  });
}

std::string read_text(const fs::path& path, std::int64_t max_bytes) {
  const File file(path, OpenMode::read);
  const std::int64_t size = file.size();
  if (size > max_bytes) {
    throw DataError(fmt::format("{}: {} bytes, at most {} expected: is it the right file?",
                                path.string(), size, max_bytes));
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace tessera::io
