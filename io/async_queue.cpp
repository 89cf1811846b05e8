#include "io/async_queue.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/error.hpp"
#include "io/system_calls.hpp"

namespace tessera::io {
namespace {

/// Whole sectors of what a hook lets move, for a disk moves nothing less.
std::size_t whole_sectors(std::size_t bytes, std::size_t at_most) {
  constexpr auto kBytes = static_cast<std::size_t>(kSector);
  if (at_most >= bytes) return bytes;
  return std::min(bytes, std::max(at_most / kBytes, std::size_t{1}) * kBytes);
}

[[noreturn]] void refuse(const std::filesystem::path& file, int depth, int error) {
  const char* remedy = error == EAGAIN ? " (fs.aio-max-nr is what the whole node may have: sysctl "
                                         "-w fs.aio-max-nr=1048576, or a smaller offload.depth)"
                                       : "";
  const std::string message =
      fmt::format("{}: cannot have {} asynchronous requests at a time: {}{}", file.string(), depth,
                  errno_text(error), remedy);
  if (error == ENOMEM) throw MemoryError(message);
  throw IoError(message);
}

}  // namespace

AsyncQueue::AsyncQueue(int depth, const std::filesystem::path& file)
    : events_(static_cast<std::size_t>(depth)) {
  complete_.reserve(events_.size());
  std::size_t none = 0;
  if (!system_calls::may_begin(IoCall::queue, file, none)) refuse(file, depth, errno);
  event_ = ::eventfd(0, EFD_CLOEXEC);
  if (event_ < 0) refuse(file, depth, errno);
  const int result = ::io_setup(depth, &context_);
  if (result == 0) return;
  ::close(event_);
  refuse(file, depth, -result);
}

AsyncQueue::~AsyncQueue() {
  close();
  ::close(event_);
}

void AsyncQueue::close() {
  if (context_ != nullptr) ::io_destroy(context_);  // waits for what is under way
  context_ = nullptr;
}

int AsyncQueue::begin(AsyncRequest& request) {
  auto bytes = static_cast<std::size_t>(request.bytes), at_most = bytes;
  if (!system_calls::may_begin(request.call, request.file->path(), at_most)) return errno;
  bytes = whole_sectors(bytes, at_most);
  const auto prepare = request.call == IoCall::write ? io_prep_pwrite : io_prep_pread;
  prepare(&request.control, request.file->descriptor(), request.memory, bytes, request.offset);
  io_set_eventfd(&request.control, event_);
  request.control.data = &request;
  iocb* control = &request.control;
  while (true) {
    const int result = ::io_submit(context_, 1, &control);
    if (result == 1) return 0;
    if (result != -EINTR) return result < 0 ? -result : EAGAIN;
  }
}

std::span<AsyncRequest* const> AsyncQueue::wait() {
  complete_.clear();
  std::uint64_t count = 0;
  while (::read(event_, &count, sizeof count) < 0) {
    if (errno != EINTR)
      throw IoError(fmt::format("cannot wait for the disk: {}", errno_text(errno)));
  }
  int n = 0;
  do {
    timespec now{};
    n = ::io_getevents(context_, 0, static_cast<long>(events_.size()), events_.data(), &now);
  } while (n == -EINTR);
  if (n < 0)
    throw IoError(fmt::format("cannot ask for what the disk has done: {}", errno_text(-n)));
  for (const io_event& event : std::span(events_).first(static_cast<std::size_t>(n))) {
    auto& request = *static_cast<AsyncRequest*>(event.data);
    const auto result = static_cast<std::int64_t>(event.res);  // negative: an errno
    request.error = result < 0 ? static_cast<int>(-result) : 0;
    request.moved = std::max<std::int64_t>(result, 0);
    if (request.moved > 0)
      system_calls::has_moved(request.call, request.file->path(), request.memory, request.moved,
                              request.offset);
    complete_.push_back(&request);
  }
  return complete_;
}

void AsyncQueue::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event_, &one, sizeof one);  // 2^64 fit
}

}  // namespace tessera::io
