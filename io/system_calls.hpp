// The operating system's calls as io/ makes them, all of them and nowhere else: so that bytes are
// counted, and so that tests and the deck's [fault] section can make any one of them fail as a real
// disk does. Process-wide, as the system itself is.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>

#include "core/io_call.hpp"

namespace tessera {

/// What a hook lets happen to one call.
struct IoVerdict {
  int error = 0;  // an errno: the call fails and does nothing
  std::size_t at_most =
      std::numeric_limits<std::size_t>::max();  // bytes that move: a short transfer
  std::chrono::microseconds delay{0};
};

/// Called before every call, from whichever thread makes it; `bytes` is 0 where none move.
using IoHook =
    std::function<IoVerdict(IoCall call, const std::filesystem::path& path, std::size_t bytes)>;

/// Replaces the hook; an empty one, the default, lets everything pass. Not while io/ is in use.
void set_io_hook(IoHook hook);

/// Bytes that this process has read from and written to files.
struct IoBytes {
  std::int64_t read = 0, written = 0;
};
IoBytes io_bytes();

// As the calls they are named after: the result, or -1 with errno set. Interrupted ones go on.
namespace system_calls {
/// Waits for nobody, as opening a FIFO would.
int open(const std::filesystem::path& path, int flags);
/// What is open, as stat(2)'s st_mode says it. No call that a hook sees: it is a part of opening.
mode_t mode(int descriptor);
std::int64_t size(int descriptor, const std::filesystem::path& path);
int resize(int descriptor, const std::filesystem::path& path, std::int64_t bytes);
ssize_t read(int descriptor, const std::filesystem::path& path, void* out, std::size_t bytes,
             std::int64_t offset);
ssize_t write(int descriptor, const std::filesystem::path& path, const void* data,
              std::size_t bytes, std::int64_t offset);
/// flock() that does not wait: EWOULDBLOCK if another has the lock.
int lock(int descriptor, const std::filesystem::path& path, int operation);
int sync(int descriptor, const std::filesystem::path& path);
int close(int descriptor, const std::filesystem::path& path);
int rename(const std::filesystem::path& from, const std::filesystem::path& to);
/// Two names change places at once; EINVAL or ENOSYS where the file system cannot.
int exchange(const std::filesystem::path& a, const std::filesystem::path& b);
int remove_tree(const std::filesystem::path& path);
int create_directories(const std::filesystem::path& path);
/// Before a directory is listed by std::filesystem.
int list(const std::filesystem::path& path);
}  // namespace system_calls

}  // namespace tessera
