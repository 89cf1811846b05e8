// Linux's asynchronous I/O (libaio): requests to the disk that are under way at once. Every call is
// seen by the hook of system_calls.
#pragma once

#include <libaio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/io_call.hpp"
#include "io/file.hpp"

namespace tessera::io {

/// Some bytes of a file on their way to or from memory. Stays where it is while it is under way.
struct AsyncRequest {
  IoCall call = IoCall::read;  // or write
  const File* file = nullptr;
  std::byte* memory = nullptr;
  std::int64_t offset = 0, bytes = 0;
  std::size_t slot = 0;    // the caller's
  std::int64_t moved = 0;  // once complete
  int error = 0;           // likewise: an errno
  iocb control{};
};

/// Used by one thread, but for wake().
class AsyncQueue {
 public:
  /// For at most `depth` requests at a time. `file` is named by the IoError that there is when the
  /// system has no queue to give.
  AsyncQueue(int depth, const std::filesystem::path& file);
  ~AsyncQueue();
  AsyncQueue(const AsyncQueue&) = delete;
  AsyncQueue& operator=(const AsyncQueue&) = delete;

  /// Begins a request: 0, or the errno for which it did not begin. EAGAIN: not now.
  int begin(AsyncRequest& request);
  /// Waits until a request is complete or wake() was called. Requests that are complete; good until
  /// the next call.
  std::span<AsyncRequest* const> wait();
  /// Lets wait() return. From any thread.
  void wake();
  /// Returns once nothing is under way any more; no request may follow.
  void close();

 private:
  io_context_t context_ = nullptr;
  int event_ = -1;  // an eventfd: completions and wake() are counted in it
  std::vector<io_event> events_;
  std::vector<AsyncRequest*> complete_;
};

}  // namespace tessera::io
