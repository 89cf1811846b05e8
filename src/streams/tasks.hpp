// Work that goes on beside the caller, on the CPU: FIFO queues of tasks, and events that count what
// is complete.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/streams.hpp"

namespace tessera::streams {

/// What a call of Task::advance() achieved.
enum class Progress : std::uint8_t { idle, some, done };

/// Background work under way. advance() does a bounded amount of it and never blocks: `idle` when
/// there was nothing to do yet, `done` once all is.
class Task {
 public:
  virtual ~Task() = default;
  virtual Progress advance() = 0;
};

/// Begins a piece of work. nullptr: it is done already, or queued on a device that keeps its order
/// itself.
using Start = std::function<std::unique_ptr<Task>()>;

/// "The `count`-th piece of work on `stream` is complete": ever, or since a step's begin.
struct Event {
  std::size_t stream = 0;
  std::int64_t count = 0;
};

/// FIFO queues of tasks. One thread queues, completes and waits; which thread does the queued work
/// is the implementation's choice.
class TaskStreams {
 public:
  virtual ~TaskStreams() = default;
  /// Queues work: `start` is called once its stream's earlier work and `waits` are complete.
  virtual Event enqueue(std::size_t stream, std::vector<Event> waits, Start start) = 0;
  /// Records that the caller has done a piece of work itself, on a stream that only it uses.
  virtual Event complete(std::size_t stream) = 0;
  /// The event of the last piece of work that is queued on the stream.
  virtual Event last(std::size_t stream) const = 0;
  /// Blocks until the event; rethrows what background work threw. Returns whether it had to wait.
  virtual bool wait(Event event) = 0;
};

/// Copies bytes in pieces, so that other streams' tasks are served between.
std::unique_ptr<Task> make_copy_task(const std::byte* from, std::byte* to, std::int64_t bytes);

}  // namespace tessera::streams
