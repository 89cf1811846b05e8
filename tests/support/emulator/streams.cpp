#include "support/emulator/streams.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

#include "cudaTypedefs.h"

namespace {

using Clock = std::chrono::steady_clock;

/// How long the host's work may wait, for disks say, before nothing is thought to come any more.
constexpr std::chrono::seconds kPatience{20};

/// A place in a stream that others may wait for.
struct Point {
  bool reached = false;
  Clock::time_point when;
};
using PointRef = std::shared_ptr<Point>;

struct Work {
  std::function<void()> run;
  PointRef waits;              // may be null
  std::function<bool()> open;  // likewise

  bool ready() const { return (!waits || waits->reached) && (!open || open()); }
};

using Nodes = std::set<std::size_t>;

}  // namespace

struct CUgraph_st {
  struct Node {
    std::function<void()> run;
    int priority = 0;  // of the stream that it was captured from
    Nodes after;
  };
  std::vector<Node> nodes;
};
struct CUgraphExec_st {
  CUgraph_st graph;
  bool node_priorities = false;  // else all nodes have the priority of the stream of the launch
};
struct CUstream_st {
  int priority = 0;
  std::deque<Work> queue;
  CUgraph_st* capture = nullptr;  // being taken down; owned by the stream that began it
  Nodes last;                     // nodes that the next one comes after
};
struct CUevent_st {
  PointRef point;
  CUgraph_st* capture = nullptr;  // recorded in it, after `last`
  Nodes last;
};

namespace {

struct Device {
  std::set<cudaStream_t> streams;
  int priority = 0;          // of the work that runs now
  int graphs_under_way = 0;  // launched and not at their end
  std::mt19937 random{1};
  std::set<tessera::emulator::HostTasks*> hosts;

  static Device& one() {
    static Device device;
    return device;
  }

  std::size_t draw(std::size_t n) { return random() % n; }

  /// A little of the host's work beside; false where there is none that can go on.
  bool run_host() {
    return std::any_of(hosts.begin(), hosts.end(), [](auto* h) { return h->go_on(); });
  }

  /// Runs a piece of work of any stream that may go on, or of the host beside it; false where none
  /// may.
  bool run_one() {
    if (!hosts.empty() && draw(2) == 0 && run_host()) return true;
    std::vector<cudaStream_t> ready;
    for (cudaStream_t s : streams) {
      if (!s->queue.empty() && s->queue.front().ready()) ready.push_back(s);
    }
    if (ready.empty()) return run_host();
    cudaStream_t chosen = ready[draw(ready.size())];
    const Work work = std::move(chosen->queue.front());
    chosen->queue.pop_front();
    priority = chosen->priority;
    if (work.run) work.run();
    return true;
  }
  /// Runs work, of streams in any order that waits allow, until `done`.
  void run_until(const std::function<bool()>& done,
                 const char* else_said = "streams wait for each other") {
    auto last = Clock::now();
    while (!done()) {
      const std::mt19937 before = random;
      if (run_one()) {
        last = Clock::now();
        continue;
      }
      if (Clock::now() - last > kPatience) throw std::runtime_error(else_said);
      random = before;  // orders do not depend on how long disks take
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  void run_all() {
    run_until([this] {
      return std::all_of(streams.begin(), streams.end(),
                         [](cudaStream_t s) { return s->queue.empty(); });
    });
  }
  bool capturing() const {
    return std::any_of(streams.begin(), streams.end(),
                       [](cudaStream_t s) { return s->capture != nullptr; });
  }
};

void reach(const PointRef& point) {
  point->reached = true;
  point->when = Clock::now();
}

/// A graph's nodes in an order that its edges allow.
void run_graph(const CUgraphExec_st& made, int launch_priority) {
  const CUgraph_st& graph = made.graph;
  std::set<std::size_t> left;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) left.insert(i);
  while (!left.empty()) {
    std::vector<std::size_t> ready;
    for (std::size_t i : left) {
      const Nodes& after = graph.nodes[i].after;
      if (std::none_of(after.begin(), after.end(), [&](std::size_t n) { return left.contains(n); }))
        ready.push_back(i);
    }
    const std::size_t chosen = ready[Device::one().draw(ready.size())];
    Device::one().priority = made.node_priorities ? graph.nodes[chosen].priority : launch_priority;
    graph.nodes[chosen].run();
    left.erase(chosen);
  }
  --Device::one().graphs_under_way;
}

}  // namespace

namespace tessera::emulator {

cudaError_t queue_work(cudaStream_t stream, std::function<void()> work) {
  if (stream == nullptr) {
    if (Device::one().capturing()) return cudaErrorStreamCaptureUnsupported;
    Device::one().run_all();
    work();
  } else if (stream->capture != nullptr) {
    stream->capture->nodes.push_back({std::move(work), stream->priority, stream->last});
    stream->last = {stream->capture->nodes.size() - 1};
  } else {
    stream->queue.push_back({std::move(work), nullptr, {}});
  }
  return cudaSuccess;
}

void queue_gate(cudaStream_t stream, std::function<bool()> open) {
  stream->queue.push_back({nullptr, nullptr, std::move(open)});
}

HostTasks::HostTasks() { Device::one().hosts.insert(this); }
HostTasks::~HostTasks() { Device::one().hosts.erase(this); }

streams::Event HostTasks::enqueue(std::size_t stream, std::vector<streams::Event> waits,
                                  streams::Start start) {
  lanes_[stream].queue.push_back({std::move(waits), std::move(start)});
  return {stream, ++lanes_[stream].queued};
}

streams::Event HostTasks::complete(std::size_t stream) {
  ++lanes_[stream].done;
  return {stream, ++lanes_[stream].queued};
}

bool HostTasks::wait(streams::Event event) {
  const auto over = [&] { return lanes_[event.stream].done >= event.count || error_; };
  const bool had_to = !over();
  Device::one().run_until(over, "the host waits for what never comes");
  if (error_) std::rethrow_exception(error_);
  return had_to;
}

bool HostTasks::go_on() {
  if (std::exchange(going_on_, true)) return false;  // its work asks the GPU, which asks here
  const std::size_t first = Device::one().draw(kStreams);
  bool went_on = false;
  for (std::size_t k = 0; k < kStreams && !went_on && !error_; ++k) {
    try {
      went_on = go_on(lanes_[(first + k) % kStreams]);
    } catch (...) {
      error_ = std::current_exception();
      went_on = true;
    }
  }
  going_on_ = false;
  return went_on;
}

bool HostTasks::go_on(Lane& lane) {
  if (!lane.task) {
    if (lane.queue.empty()) return false;
    const auto over = [&](const streams::Event& e) { return lanes_[e.stream].done >= e.count; };
    if (!std::ranges::all_of(lane.queue.front().waits, over)) return false;
    const auto start = std::move(lane.queue.front().start);
    lane.queue.pop_front();
    lane.task = start();
  }
  const auto progress = lane.task ? lane.task->advance() : streams::Progress::done;
  if (progress != streams::Progress::done) return progress == streams::Progress::some;
  lane.task.reset();
  ++lane.done;
  return true;
}

int running_priority() { return Device::one().priority; }
int graphs_under_way() { return Device::one().graphs_under_way; }

}  // namespace tessera::emulator

using tessera::emulator::queue_work;

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  *stream = *Device::one().streams.insert(new CUstream_st{.priority = priority}).first;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, 0); }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0, *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  cudaStreamSynchronize(stream);
  Device::one().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (Device::one().capturing()) return cudaErrorStreamCaptureUnsupported;
  if (stream == nullptr) return cudaDeviceSynchronize();
  Device::one().run_until([&] { return stream->queue.empty(); });
  return cudaSuccess;
}
// Asking for the state of a stream lets the emulated GPU advance.
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (Device::one().capturing()) return cudaErrorStreamCaptureUnsupported;
  if (stream->queue.empty()) return cudaSuccess;
  Device::one().run_one();
  return stream->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaDeviceSynchronize() {
  if (Device::one().capturing()) return cudaErrorStreamCaptureUnsupported;
  Device::one().run_all();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  const bool captured = stream != nullptr && stream->capture != nullptr;
  if (flags == cudaEventRecordExternal && !captured) return cudaErrorInvalidValue;
  if (captured && flags != cudaEventRecordExternal) {
    *event = {.point = nullptr, .capture = stream->capture, .last = stream->last};
    return cudaSuccess;
  }
  auto point = std::make_shared<Point>();
  *event = {.point = point, .capture = nullptr, .last = {}};
  return queue_work(stream, [point] { reach(point); });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->point && !event->point->reached) Device::one().run_one();
  return event->point && !event->point->reached ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  if (!from->point || !to->point) return cudaErrorInvalidValue;
  if (!from->point->reached || !to->point->reached) return cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(to->point->when - from->point->when).count();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->capture != nullptr) {
    if (stream->capture != nullptr && stream->capture != event->capture)
      return cudaErrorStreamCaptureIsolation;
    stream->capture = event->capture;
    stream->last.insert(event->last.begin(), event->last.end());
    return cudaSuccess;
  }
  if (stream->capture != nullptr && event->point) return cudaErrorStreamCaptureIsolation;
  if (event->point) stream->queue.push_back({nullptr, event->point, {}});
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const auto wait_value = [](cudaStream_t stream, CUdeviceptr address, std::uint32_t value,
                             unsigned flags) {
    if (flags != CU_STREAM_WAIT_VALUE_GEQ || stream->capture != nullptr)
      return CUDA_ERROR_INVALID_VALUE;
    const auto* word = reinterpret_cast<const std::atomic<std::uint32_t>*>(address);
    tessera::emulator::queue_gate(
        stream, [=] { return static_cast<std::int32_t>(word->load() - value) >= 0; });
    return CUDA_SUCCESS;
  };
  const bool known = std::string_view(symbol) == "cuStreamWaitValue32";
  *function = known ? reinterpret_cast<void*>(PFN_cuStreamWaitValue32_v11070(wait_value)) : nullptr;
  *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr || stream->capture != nullptr) return cudaErrorInvalidValue;
  stream->capture = new CUgraph_st;
  stream->last.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (stream->capture == nullptr) return cudaErrorInvalidValue;
  *graph = stream->capture;
  // The nodes that come before the origin, directly or not.
  Nodes joined = stream->last, next = joined;
  while (!next.empty()) {
    Nodes before;
    for (std::size_t n : next) {
      for (std::size_t a : (*graph)->nodes[n].after) {
        if (joined.insert(a).second) before.insert(a);
      }
    }
    next = before;
  }
  bool unjoined = false;
  for (cudaStream_t s : Device::one().streams) {
    if (s->capture != *graph) continue;
    unjoined =
        unjoined || !std::includes(joined.begin(), joined.end(), s->last.begin(), s->last.end());
    s->capture = nullptr;
    s->last.clear();
  }
  if (!unjoined) return cudaSuccess;
  delete *graph;
  *graph = nullptr;
  return cudaErrorStreamCaptureUnjoined;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph,
                                 unsigned long long flags) {
  *made = new CUgraphExec_st{*graph, (flags & cudaGraphInstantiateFlagUseNodePriority) != 0};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  ++Device::one().graphs_under_way;
  return queue_work(stream, [graph, priority = stream->priority] { run_graph(*graph, priority); });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}
