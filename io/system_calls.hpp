// All calls of the operating system that io/ makes on files; those of asynchronous requests are
// made in async_queue, but asked about and counted here. So bytes are counted; tests and the deck's
// [fault] section can make any call fail as a real disk does; and a test can record what a disk
// that loses power might hold. One hook and one witness serve the whole process.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <span>

#include "core/io_call.hpp"

namespace tessera::io {

/// What a hook decides about one call.
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

/// A call that has changed what is on the disk, or has made it stay there: a directory or file
/// created, cut or opened, written to, renamed, removed or synced.
struct IoChange {
  IoCall call;
  const std::filesystem::path& path;
  const std::filesystem::path& to = path;  // of a rename or an exchange
  std::span<const std::byte> written = {};
  std::int64_t at = 0;   // where they were written; the new size of a resize
  bool emptied = false;  // of an open that cuts the file to nothing
};

/// Called after every such call that succeeded, from whichever thread made it.
using IoWitness = std::function<void(const IoChange& change)>;

/// Replaces the witness; an empty one, the default, sees nothing. Not while io/ is in use.
void set_io_witness(IoWitness witness);

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
/// Room on the disk for so many bytes; EOPNOTSUPP where the file system cannot promise that.
int allocate(int descriptor, const std::filesystem::path& path, std::int64_t bytes);
ssize_t read(int descriptor, const std::filesystem::path& path, void* out, std::size_t bytes,
             std::int64_t offset);
ssize_t write(int descriptor, const std::filesystem::path& path, const void* data,
              std::size_t bytes, std::int64_t offset);
/// flock() that does not wait: EWOULDBLOCK if another has the lock.
int lock(int descriptor, const std::filesystem::path& path, int operation);
/// To the end of a file that was opened with O_APPEND, wherever others have meanwhile put it.
ssize_t append(int descriptor, const std::filesystem::path& path, const void* data,
               std::size_t bytes);
int sync(int descriptor, const std::filesystem::path& path);
int close(int descriptor, const std::filesystem::path& path);
int rename(const std::filesystem::path& from, const std::filesystem::path& to);
/// Two names change places at once; EINVAL or ENOSYS where the file system cannot.
int exchange(const std::filesystem::path& a, const std::filesystem::path& b);
int remove_tree(const std::filesystem::path& path);
int create_directories(const std::filesystem::path& path);
/// Before a directory is listed by std::filesystem.
int list(const std::filesystem::path& path);

// Of asynchronous calls (async_queue), which begin in one place and end in another.
/// Whether one may begin, with at most `bytes` of those given; else false, with errno set.
bool may_begin(IoCall call, const std::filesystem::path& path, std::size_t& bytes);
/// It has moved `n` > 0 bytes between `data` and the place `at` in the file.
void has_moved(IoCall call, const std::filesystem::path& path, const void* data, ssize_t n,
               std::int64_t at);
}  // namespace system_calls

}  // namespace tessera::io
