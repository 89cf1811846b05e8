#include "io/system_calls.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <thread>

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

IoHook hook;
IoWitness witness;
std::atomic<std::int64_t> bytes_read{0}, bytes_written{0};

/// Whether the call may go ahead, with at most `bytes`.
bool allowed(IoCall call, const fs::path& path, std::size_t& bytes) {
  if (!hook) return true;
  const IoVerdict verdict = hook(call, path, bytes);
  if (verdict.delay.count() > 0) std::this_thread::sleep_for(verdict.delay);
  bytes = std::min(bytes, verdict.at_most);
  errno = verdict.error;
  return verdict.error == 0;
}

bool allowed(IoCall call, const fs::path& path) {
  std::size_t none = 0;
  return allowed(call, path, none);
}

/// The result of a call, which the witness hears of if it is a success.
template <typename Result>
Result told(Result result, const IoChange& change) {
  if (result >= 0 && witness) {
    const int error = errno;
    witness(change);
    errno = error;
  }
  return result;
}

template <typename Call>
auto uninterrupted(Call&& call) {
  while (true) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

ssize_t written(ssize_t n, const fs::path& path, const void* data, std::int64_t at) {
  if (n <= 0) return n;
  bytes_written.fetch_add(n, std::memory_order_relaxed);
  const auto* bytes = static_cast<const std::byte*>(data);
  return told(n, {.call = IoCall::write,
                  .path = path,
                  .written = {bytes, static_cast<std::size_t>(n)},
                  .at = at});
}

int as_errno(const std::error_code& error) {
  if (!error) return 0;
  errno = error.value();
  return -1;
}

}  // namespace

void set_io_hook(IoHook next) { hook = std::move(next); }

void set_io_witness(IoWitness next) { witness = std::move(next); }

IoBytes io_bytes() {
  return {.read = bytes_read.load(std::memory_order_relaxed),
          .written = bytes_written.load(std::memory_order_relaxed)};
}

namespace system_calls {

int open(const fs::path& path, int flags) {
  if (!allowed(IoCall::open, path)) return -1;
  const int descriptor =
      uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0666); });
  if ((flags & (O_CREAT | O_TRUNC)) == 0) return descriptor;
  return told(descriptor, {.call = IoCall::open, .path = path, .emptied = (flags & O_TRUNC) != 0});
}

mode_t mode(int descriptor) {
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 ? status.st_mode : 0;
}

std::int64_t size(int descriptor, const fs::path& path) {
  struct stat status {};
  return allowed(IoCall::size, path) && ::fstat(descriptor, &status) == 0 ? status.st_size : -1;
}

int resize(int descriptor, const fs::path& path, std::int64_t bytes) {
  if (!allowed(IoCall::resize, path)) return -1;
  return told(uninterrupted([&] { return ::ftruncate(descriptor, bytes); }),
              {.call = IoCall::resize, .path = path, .at = bytes});
}

int allocate(int descriptor, const fs::path& path, std::int64_t bytes) {
  if (!allowed(IoCall::allocate, path)) return -1;
  return told(uninterrupted([&] { return ::fallocate(descriptor, 0, 0, bytes); }),
              {.call = IoCall::resize, .path = path, .at = bytes});
}

ssize_t read(int descriptor, const fs::path& path, void* out, std::size_t bytes,
             std::int64_t offset) {
  if (!allowed(IoCall::read, path, bytes)) return -1;
  const ssize_t n = uninterrupted([&] { return ::pread(descriptor, out, bytes, offset); });
  if (n > 0) bytes_read.fetch_add(n, std::memory_order_relaxed);
  return n;
}

ssize_t write(int descriptor, const fs::path& path, const void* data, std::size_t bytes,
              std::int64_t offset) {
  if (!allowed(IoCall::write, path, bytes)) return -1;
  const ssize_t n = uninterrupted([&] { return ::pwrite(descriptor, data, bytes, offset); });
  return written(n, path, data, offset);
}

ssize_t append(int descriptor, const fs::path& path, const void* data, std::size_t bytes) {
  if (!allowed(IoCall::write, path, bytes)) return -1;
  const ssize_t n = uninterrupted([&] { return ::write(descriptor, data, bytes); });
  // Such a write leaves the descriptor's position behind what it has written.
  return written(n, path, data, n > 0 && witness ? ::lseek(descriptor, 0, SEEK_CUR) - n : 0);
}

int lock(int descriptor, const fs::path& path, int operation) {
  if (!allowed(IoCall::lock, path)) return -1;
  return uninterrupted([&] { return ::flock(descriptor, operation | LOCK_NB); });
}

int sync(int descriptor, const fs::path& path) {
  if (!allowed(IoCall::sync, path)) return -1;
  return told(uninterrupted([&] { return ::fsync(descriptor); }),
              {.call = IoCall::sync, .path = path});
}

int close(int descriptor, const fs::path& path) {
  // Whatever it returns, the descriptor is closed: an error to report, never one to retry.
  const bool good = allowed(IoCall::close, path);
  const int verdict = errno, result = ::close(descriptor);
  if (good) return result;
  errno = verdict;
  return -1;
}

int rename(const fs::path& from, const fs::path& to) {
  if (!allowed(IoCall::rename, from)) return -1;
  return told(::rename(from.c_str(), to.c_str()), {.call = IoCall::rename, .path = from, .to = to});
}

int exchange(const fs::path& a, const fs::path& b) {
  if (!allowed(IoCall::exchange, a)) return -1;
  return told(::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE),
              {.call = IoCall::exchange, .path = a, .to = b});
}

int remove_tree(const fs::path& path) {
  if (!allowed(IoCall::remove, path)) return -1;
  std::error_code error;
  fs::remove_all(path, error);
  return told(as_errno(error), {.call = IoCall::remove, .path = path});
}

int create_directories(const fs::path& path) {
  if (!allowed(IoCall::create_directory, path)) return -1;
  std::error_code error;
  fs::create_directories(path, error);
  return told(as_errno(error), {.call = IoCall::create_directory, .path = path});
}

int list(const fs::path& path) { return allowed(IoCall::list, path) ? 0 : -1; }

bool may_begin(IoCall call, const fs::path& path, std::size_t& bytes) {
  return allowed(call, path, bytes);
}

void has_moved(IoCall call, const fs::path& path, const void* data, ssize_t n, std::int64_t at) {
  if (call == IoCall::write) {
    written(n, path, data, at);
  } else {
    bytes_read.fetch_add(n, std::memory_order_relaxed);
  }
}

}  // namespace system_calls
}  // namespace tessera::io
