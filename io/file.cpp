#include "io/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/error.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kAppendBuffer = std::size_t{1} << 20;

std::string temporary_name(const fs::path& path) { return path.string() + ".tmp"; }

[[noreturn]] void fail(std::string_view action, const fs::path& path, int error) {
  const std::string message =
      fmt::format("{}: cannot {}: {}", path.string(), action, errno_text(error));
  if (error == ENOENT || error == ENOTDIR || error == EISDIR) throw DataError(message);
  throw IoError(message);
}

int flags_of(OpenMode mode) {
  switch (mode) {
    case OpenMode::read: return O_RDONLY;
    case OpenMode::create: return O_RDWR | O_CREAT | O_TRUNC;
    case OpenMode::update: return O_RDWR;
  }
  return O_RDONLY;
}

struct stat status_of(int descriptor, const fs::path& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail("examine", path, errno);
  return status;
}

}  // namespace

File::File(fs::path path, OpenMode mode) : path_(std::move(path)) {
  do {
    descriptor_ = ::open(path_.c_str(), flags_of(mode) | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) fail("open", path_, errno);
  if (S_ISDIR(status_of(descriptor_, path_).st_mode)) {  // open() allows it for reading
    ::close(descriptor_);
    fail("open", path_, EISDIR);
  }
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::int64_t File::size() const { return status_of(descriptor_, path_).st_size; }

void File::read(std::int64_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {  // one call moves at most 0x7ffff000 bytes
    const ssize_t n = ::pread(descriptor_, out.data() + done, out.size() - done,
                              offset + static_cast<std::int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
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
    const ssize_t n = ::pwrite(descriptor_, bytes.data() + done, bytes.size() - done,
                               offset + static_cast<std::int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write", path_, errno);
    done += static_cast<std::size_t>(n);
  }
}

void File::sync() {
  if (::fsync(descriptor_) != 0) fail("sync", path_, errno);
}

void File::close() {
  // EINTR leaves the descriptor closed on Linux: it is an error to report, never one to retry.
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("close", path_, errno);
}

AtomicFile::AtomicFile(fs::path path)
    : path_(std::move(path)), file_(temporary_name(path_), OpenMode::create) {}

AtomicFile::~AtomicFile() {
  if (file_.descriptor() >= 0) ::unlink(file_.path().c_str());
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
  if (::rename(file_.path().c_str(), path_.c_str()) != 0) fail("rename", file_.path(), errno);
  sync_directory(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
}

void sync_directory(const fs::path& directory) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail("open", directory, errno);
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  // Some network file systems know no fsync of a directory and say so.
  if (result != 0 && error != EINVAL) fail("sync", directory, error);
}

void create_directories(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) fail("create", directory, error.value());
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

}  // namespace tessera
