#include "streams/cuda/cuda_streams.hpp"

#include <algorithm>
#include <exception>
#include <nvtx3/nvtx3.hpp>
#include <thread>

#include "core/clock.hpp"

namespace tessera::streams {

CudaStreams::CudaStreams(CudaQueue& queue, std::function<void()> look)
    : queue_(queue), look_(std::move(look)) {
  int least = 0, greatest = 0;
  CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  for (std::size_t s = 0; s < kStreams; ++s) {
    cudaStream_t made = nullptr;
    // Streams beside compute have priority, because compute waits for them: collectives take few
    // multiprocessors, and the kernels between them are short.
    CUDA_TRY(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking,
                                          s == kCompute ? least : greatest));
    streams_[s].reset(made);
  }
  queue_.stream = stream(kCompute);
}

CudaStreams::~CudaStreams() {
  if (mode_ == Mode::record) {  // an exception ended the step
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(stream(kCompute), &graph) == cudaSuccess) cudaGraphDestroy(graph);
  }
  // After this nothing may use the memory, so wait for the GPU; but not after an exception, when
  // collectives may wait for ranks that are gone.
  if (std::uncaught_exceptions() == 0) cudaDeviceSynchronize();
  queue_.stream = nullptr;
}

cudaEvent_t CudaStreams::new_event() {
  StepGraph& r = *now_;
  if (r.used == r.events.size()) {
    cudaEvent_t made = nullptr;
    CUDA_TRY(cudaEventCreate(&made));
    r.events.emplace_back(made);
  }
  return r.events[r.used++].get();
}

/// An event that records the time at which the stream gets here.
cudaEvent_t CudaStreams::mark(std::size_t s) {
  const cudaEvent_t event = new_event();
  CUDA_TRY(cudaEventRecordWithFlags(
      event, stream(s), mode_ == Mode::record ? cudaEventRecordExternal : cudaEventRecordDefault));
  return event;
}

void CudaStreams::note(Span::What what, std::size_t index) {
  auto& spans = now_->spans;
  if (!spans.empty() && spans.back().what == what && spans.back().index == index) return;
  spans.push_back({.what = what, .index = index, .from = mark(kCompute)});
}

bool CudaStreams::begin(const Step& step) {
  begin_ = SteadyClock::now();
  every_work_ = step.timing == Timing::works;
  queued_ = {};
  mode_ = Mode::queue;
  now_ = &once_;
  if (step.repeatable && !every_work_) {
    // Things that load or connect at their first use must not happen during recording, so the first
    // run is queued.
    const auto [at, first] = graphs_.try_emplace(step.key);
    if (at->second.graph) {
      now_ = &at->second;
      mode_ = Mode::replay;
      CUDA_TRY(cudaGraphLaunch(now_->graph.get(), stream(kCompute)));
      return false;
    }
    if (!first) {
      now_ = &at->second;
      mode_ = Mode::record;
      CUDA_TRY(cudaStreamBeginCapture(stream(kCompute), cudaStreamCaptureModeThreadLocal));
    }
  }
  now_->used = 0;
  now_->spans.clear();
  now_->works.clear();
  note(Span::What::part, 0);
  fork();
  return true;
}

/// Makes all streams begin where compute is now.
void CudaStreams::fork() {
  const cudaEvent_t here = new_event();
  CUDA_TRY(cudaEventRecord(here, stream(kCompute)));
  for (std::size_t s = 0; s < kStreams; ++s) {
    if (s != kCompute) CUDA_TRY(cudaStreamWaitEvent(stream(s), here));
  }
}

/// Makes compute wait for the end of all streams.
void CudaStreams::join() {
  for (std::size_t s = 0; s < kStreams; ++s) {
    if (s == kCompute) continue;
    if (queued_[s] > 0) note(Span::What::wait, s);
    const cudaEvent_t there = new_event();
    CUDA_TRY(cudaEventRecord(there, stream(s)));
    CUDA_TRY(cudaStreamWaitEvent(stream(kCompute), there));
  }
  note(Span::What::end, 0);
}

void CudaStreams::wait_for(std::size_t s, const std::vector<Event>& waits) {
  for (const Event& e : waits) {
    TESSERA_CHECK(e.count >= 1 && static_cast<std::size_t>(e.count) <= queued_[e.stream],
                  "a wait for work {} of stream {}, which has {}", e.count, e.stream,
                  queued_[e.stream]);
    if (s == kCompute && e.stream != kCompute) note(Span::What::wait, e.stream);
    const auto& event = done_[e.stream][static_cast<std::size_t>(e.count) - 1];
    CUDA_TRY(cudaStreamWaitEvent(stream(s), event.get()));
  }
}

void CudaStreams::queue_on(const Work& work, const std::function<void()>& f) {
  const std::size_t s = work.stream;
  wait_for(s, work.waits);
  if (s == kCompute) note(Span::What::part, work.part);
  const cudaEvent_t from = every_work_ ? mark(s) : nullptr;
  queue_.stream = stream(s);
  {
    const nvtx3::scoped_range range(work.name);
    f();
  }
  queue_.stream = stream(kCompute);
  if (every_work_) now_->works.emplace_back(from, mark(s));
  if (queued_[s] == done_[s].size()) {
    cudaEvent_t made = nullptr;
    CUDA_TRY(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
    done_[s].emplace_back(made);
  }
  CUDA_TRY(cudaEventRecord(done_[s][queued_[s]++].get(), stream(s)));
}

void CudaStreams::enqueue(Work work, Start start) {
  queue_on(work, [&] {
    const auto task = start();
    const bool queued = !task || task->advance() == Progress::done;
    TESSERA_CHECK(queued, "work of a GPU's stream that is not done once it is queued");
  });
}

void CudaStreams::run(const Work& work, const std::function<void()>& f) { queue_on(work, f); }

/// Waits until compute has come to the end of what is queued.
void CudaStreams::wait() {
  using namespace std::chrono_literals;
  // The thread sleeps for a small share of the time waited so far, so that sleeping adds next to
  // nothing to a step.
  constexpr auto kShortest = 50us, kLongest = 500us;
  constexpr int kShare = 256;
  const auto begin = SteadyClock::now();
  while (true) {
    const cudaError_t code = cudaStreamQuery(stream(kCompute));
    if (code != cudaErrorNotReady) return check_cuda(code, "a step on the GPU");
    cudaGetLastError();  // which remembers this too, though it is no error
    const auto nap = (SteadyClock::now() - begin) / kShare;
    if (nap < kShortest) {
      std::this_thread::yield();
      continue;
    }
    if (look_) look_();
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(nap, kLongest));
  }
}

Times CudaStreams::finish() {
  if (mode_ != Mode::replay) join();
  if (mode_ == Mode::record) {
    cudaGraph_t graph = nullptr;
    CUDA_TRY(cudaStreamEndCapture(stream(kCompute), &graph));
    const CudaHandle<cudaGraph_t> owned(graph);
    mode_ = Mode::queue;
    cudaGraphExec_t made = nullptr;
    // With this flag kernels keep their streams' priorities; without it all have that of the stream
    // of the launch.
    CUDA_TRY(cudaGraphInstantiate(&made, graph, cudaGraphInstantiateFlagUseNodePriority));
    now_->graph.reset(made);
    // While large operations are recorded, NCCL copies what they need to the GPU on a stream of its
    // own, for which a graph does not wait.
    CUDA_TRY(cudaDeviceSynchronize());
    CUDA_TRY(cudaGraphLaunch(made, stream(kCompute)));
  }
  wait();
  mode_ = Mode::idle;
  return times();
}

Times CudaStreams::times() const {
  Times all;
  all.total = seconds_since(begin_);
  const auto between = [](cudaEvent_t from, cudaEvent_t to) {
    float ms = 0;
    CUDA_TRY(cudaEventElapsedTime(&ms, from, to));
    return static_cast<double>(ms) / 1e3;
  };
  const auto& spans = now_->spans;
  for (std::size_t i = 0; i + 1 < spans.size(); ++i) {
    const double s = between(spans[i].from, spans[i + 1].from);
    if (spans[i].what == Span::What::wait) {
      all.waited[spans[i].index] += s;
    } else {
      if (all.parts.size() <= spans[i].index) all.parts.resize(spans[i].index + 1);
      all.parts[spans[i].index] += s;
    }
  }
  for (const auto& [from, to] : now_->works)
    all.works.push_back({between(spans.front().from, from), between(spans.front().from, to)});
  return all;
}

}  // namespace tessera::streams
