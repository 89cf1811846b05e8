// CUDA's streams, events and graphs, emulated: work waits in its stream until somebody
// synchronises, and then whichever stream may go on is drawn by a seed. So work that needs a wait
// that nobody asked for comes too early in some order, and work that can never begin is found.
#pragma once

#include <array>
#include <deque>
#include <exception>
#include <functional>

#include "cuda_runtime_api.h"
#include "streams/tasks.hpp"

namespace tessera::emulator {

/// Work of a stream; the null stream's is done on return, after all that was queued before.
/// A stream that is being captured only takes it down.
cudaError_t queue_work(cudaStream_t stream, std::function<void()> work);

/// Holds the stream until `open`, as a collective that waits for its peer does.
void queue_gate(cudaStream_t stream, std::function<bool()> open);

/// What the host does beside the GPU: it goes on at moments that the seed chooses too, and whenever
/// the GPU cannot. One thread does everything.
class HostTasks : public streams::TaskStreams {
 public:
  HostTasks();
  ~HostTasks() override;
  HostTasks(const HostTasks&) = delete;
  HostTasks& operator=(const HostTasks&) = delete;

  streams::Event enqueue(std::size_t stream, std::vector<streams::Event> waits,
                         streams::Start start) override;
  streams::Event complete(std::size_t stream) override;
  streams::Event last(std::size_t stream) const override { return {stream, lanes_[stream].queued}; }
  bool wait(streams::Event event) override;
  /// Does a little of some stream's work; false where nothing can go on.
  bool go_on();

 private:
  struct Item {
    std::vector<streams::Event> waits;
    streams::Start start;
  };
  struct Lane {
    std::deque<Item> queue;
    std::unique_ptr<streams::Task> task;
    std::int64_t queued = 0, done = 0;
  };
  bool go_on(Lane& lane);

  std::array<Lane, kStreams> lanes_;
  std::exception_ptr error_;
  bool going_on_ = false;
};

/// The priority of the work that calls this: its stream's; in a graph its node's, if the graph was
/// made to use those, else that of the stream of the launch. No order of work depends on it.
int running_priority();

/// Graphs that are launched and have not come to their end.
int graphs_under_way();

}  // namespace tessera::emulator
