#include "streams/cuda/cuda_streams.hpp"

#include <algorithm>
#include <exception>
#include <memory>
#include <nvtx3/nvtx3.hpp>
#include <thread>

#include "core/clock.hpp"

namespace tessera::streams {

CudaStreams::Counters::Counters() {
  void* memory = nullptr;
  CUDA_TRY(cudaHostAlloc(&memory, kStreams * sizeof(Word), cudaHostAllocPortable));
  words_ = static_cast<Word*>(memory);
  std::uninitialized_value_construct_n(words_, kStreams);
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  constexpr unsigned kVersion = 11070;  // in which the function became what it is
  const cudaError_t code = cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, kVersion,
                                                            cudaEnableDefault, &result);
  if (code == cudaSuccess && result == cudaDriverEntryPointSuccess)
    wait_value_ = reinterpret_cast<PFN_cuStreamWaitValue32_v11070>(found);
}

CudaStreams::Counters::~Counters() {
  // After an exception the GPU may wait still, for a rank that is gone, and come to them later.
  if (std::uncaught_exceptions() == 0) cudaFreeHost(words_);
}

void CudaStreams::Counters::open_all() {
  if (open_.exchange(true)) return;
  // The GPU compares modulo 2^32: this is ahead of whatever is waited for.
  for (std::size_t s = 0; s < kStreams; ++s)
    set(s, std::int64_t{words_[s].load(std::memory_order_relaxed)} + (1 << 30));
}

void CudaStreams::Counters::wait(cudaStream_t stream, std::size_t of, std::int64_t count) {
  if (wait_value_ == nullptr) {
    throw DeviceError(
        "the NVIDIA driver has no cuStreamWaitValue32, by which a GPU waits for disks and for "
        "updates on the host: have the driver updated, or offload nothing");
  }
  const CUresult code =
      wait_value_(stream, static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(words_ + of)),
                  static_cast<std::uint32_t>(count), CU_STREAM_WAIT_VALUE_GEQ);
  if (code != CUDA_SUCCESS)
    throw DeviceError(fmt::format("cuStreamWaitValue32: CUDA error {}", static_cast<int>(code)));
}

/// f(), on the thread of the host's work. Where it throws, the GPU waits for no work of the host
/// any more: nobody shall wait for what never comes.
template <typename F>
auto CudaStreams::or_open(F&& f) {
  try {
    return f();
  } catch (...) {
    counters_.open_all();
    throw;
  }
}

/// A piece of the host's work: begins once the GPU has come to the events, and counts when done.
class CudaStreams::HostWork : public Task {
 public:
  HostWork(CudaStreams& streams, std::int64_t number, std::size_t stream,
           std::vector<cudaEvent_t> after, Start start, Stretch* stretch)
      : streams_(streams),
        number_(number),
        stream_(stream),
        after_(std::move(after)),
        start_(std::move(start)),
        stretch_(stretch) {}

  Progress advance() override {
    return streams_.or_open([this] { return go_on(); });
  }

 private:
  Progress go_on() {
    if (!begun_) {
      CUDA_TRY(cudaSetDevice(streams_.gpu_));  // each thread has a current one
      for (; !after_.empty(); after_.pop_back()) {
        const cudaError_t code = cudaEventQuery(after_.back());
        if (code == cudaErrorNotReady) {
          cudaGetLastError();  // which remembers this too, though it is no error
          return Progress::idle;
        }
        check_cuda(code, "a step on the GPU");
      }
      begun_ = true;
      if (stretch_ != nullptr) stretch_->begin = seconds_since(streams_.begin_);
      task_ = start_();
    }
    if (task_) {
      if (const Progress progress = task_->advance(); progress != Progress::done) return progress;
      task_.reset();
    }
    if (stretch_ != nullptr) stretch_->end = seconds_since(streams_.begin_);
    streams_.counters_.set(stream_, number_);
    return Progress::done;
  }

  CudaStreams& streams_;
  std::int64_t number_;
  std::size_t stream_;
  std::vector<cudaEvent_t> after_;
  Start start_;
  Stretch* stretch_;
  bool begun_ = false;
  std::unique_ptr<Task> task_;
};

CudaStreams::CudaStreams(CudaQueue& queue, std::unique_ptr<TaskStreams> tasks,
                         std::function<void()> look)
    : queue_(queue), look_(std::move(look)), tasks_(std::move(tasks)) {
  CUDA_TRY(cudaGetDevice(&gpu_));
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
  tasks_.reset();
  if (std::uncaught_exceptions() > 0) counters_.open_all();  // or the GPU would wait for them
  if (mode_ == Mode::record) {                               // an exception ended the step
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(stream(kCompute), &graph) == cudaSuccess) cudaGraphDestroy(graph);
  }
  // After this nothing may use the memory, so wait for the GPU; but not after an exception, when
  // collectives may wait for ranks that are gone.
  if (std::uncaught_exceptions() == 0) cudaDeviceSynchronize();
  queue_.stream = nullptr;
}

cudaEvent_t CudaStreams::new_event() {
  StepGraphs& r = *now_;
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
  for (auto& done : done_) done.clear();
  before_section_ = {};
  used_events_ = 0;
  mode_ = Mode::queue;
  now_ = &once_;
  if (step.repeatable && !every_work_) {
    // Things that load or connect at their first use must not happen during recording, so the first
    // run is queued.
    const auto [at, first] = graphs_.try_emplace(step.key);
    if (at->second.recorded) {
      now_ = &at->second;
      mode_ = Mode::replay;
      launch();
      return false;
    }
    if (!first) {
      now_ = &at->second;
      now_->sections.clear();
      mode_ = Mode::record;
    }
  }
  now_->used = 0;
  now_->spans.clear();
  now_->works.clear();
  if (mode_ == Mode::record) {
    begin_section(1);
  } else {
    note(Span::What::part, 0);
    fork();
  }
  return true;
}

void CudaStreams::begin_section(std::int64_t times) {
  CUDA_TRY(cudaStreamBeginCapture(stream(kCompute), cudaStreamCaptureModeThreadLocal));
  now_->sections.push_back({.graph = {}, .times = times, .spans_begin = now_->spans.size()});
  for (std::size_t s = 0; s < kStreams; ++s) before_section_[s] = std::ssize(done_[s]);
  note(Span::What::part, 0);
  fork();
}

void CudaStreams::end_section() {
  join();
  cudaGraph_t graph = nullptr;
  CUDA_TRY(cudaStreamEndCapture(stream(kCompute), &graph));
  const CudaHandle<cudaGraph_t> owned(graph);
  cudaGraphExec_t made = nullptr;
  // With this flag kernels keep their streams' priorities; without it all have that of the stream
  // of the launch.
  CUDA_TRY(cudaGraphInstantiate(&made, graph, cudaGraphInstantiateFlagUseNodePriority));
  now_->sections.back().graph.reset(made);
}

std::int64_t CudaStreams::begin_repeat(std::int64_t times) {
  if (mode_ != Mode::record) return times;
  end_section();
  begin_section(times);
  return 1;
}

void CudaStreams::end_repeat() {
  if (mode_ != Mode::record) return;
  end_section();
  begin_section(1);
}

void CudaStreams::launch() {
  for (const Section& section : now_->sections) {
    for (std::int64_t i = 0; i < section.times; ++i) {
      // A launch may wait for room: for ever, where a peer was gone before it.
      if (look_ && i > 0) look_();
      CUDA_TRY(cudaGraphLaunch(section.graph.get(), stream(kCompute)));
    }
  }
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
    if (!done_[s].empty()) {
      note(Span::What::wait, s);
      if (done_[s].back().by_host) wait_for(s, s, done_[s].back());
    }
    const cudaEvent_t there = new_event();
    CUDA_TRY(cudaEventRecord(there, stream(s)));
    CUDA_TRY(cudaStreamWaitEvent(stream(kCompute), there));
  }
  note(Span::What::end, 0);
}

const CudaStreams::Done& CudaStreams::done(const Event& event) const {
  const auto& of_stream = done_[event.stream];
  TESSERA_CHECK(event.count >= 1 && static_cast<std::size_t>(event.count) <= of_stream.size(),
                "a wait for work {} of stream {}, which has {}", event.count, event.stream,
                of_stream.size());
  return of_stream[static_cast<std::size_t>(event.count) - 1];
}

/// Makes a stream wait for a piece of work of `of`. CUDA must know by events of its own what work
/// of the GPU comes before what else (CUDA Driver API, "Stream memory operations"), also where the
/// host stands between them.
void CudaStreams::wait_for(std::size_t s, std::size_t of, const Done& work) {
  if (work.by_host) {
    for (std::size_t g = 0; g < kStreams; ++g) {
      const cudaEvent_t event = (*work.after)[g].event;
      if (g != s && event != nullptr) CUDA_TRY(cudaStreamWaitEvent(stream(s), event));
    }
    counters_.wait(stream(s), of, work.number);
  } else {
    CUDA_TRY(cudaStreamWaitEvent(stream(s), work.event));
  }
}

void CudaStreams::queue_on(const Work& work, const std::function<void()>& f) {
  const std::size_t s = work.stream;
  for (const Event& e : work.waits) {
    const Done& other = done(e);
    if (e.count <= before_section_[e.stream]) continue;
    if (s == kCompute && e.stream != kCompute) note(Span::What::wait, e.stream);
    wait_for(s, e.stream, other);
  }
  if (!done_[s].empty() && done_[s].back().by_host) wait_for(s, s, done_[s].back());
  if (s == kCompute) note(Span::What::part, work.part);
  const cudaEvent_t from = every_work_ ? mark(s) : nullptr;
  queue_.stream = stream(s);
  {
    const nvtx3::scoped_range range(work.name);
    f();
  }
  queue_.stream = stream(kCompute);
  if (every_work_) now_->works.push_back({.from = from, .to = mark(s)});
  if (used_events_ == done_events_.size()) {
    cudaEvent_t made = nullptr;
    CUDA_TRY(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
    done_events_.emplace_back(made);
  }
  const cudaEvent_t event = done_events_[used_events_++].get();
  CUDA_TRY(cudaEventRecord(event, stream(s)));
  done_[s].push_back({.event = event});
}

/// Work that the host does once the GPU's work before it is done. What the GPU does then waits for
/// it.
void CudaStreams::queue_by_host(const Work& work, Start start) {
  const std::size_t s = work.stream;
  TESSERA_CHECK(mode_ == Mode::queue && s != kCompute, "work of the host in a graph");
  std::vector<Event> of_host;
  std::vector<cudaEvent_t> of_gpu;
  const auto all = std::make_shared<AfterGpu>();
  const auto come_after = [&](std::size_t stream, const OnGpu& work_of_gpu) {
    OnGpu& last = (*all)[stream];
    if (work_of_gpu.count > last.count) last = work_of_gpu;
  };
  const auto after = [&](const Event& event) {
    const Done& other = done(event);
    if (!other.by_host) {
      of_gpu.push_back(other.event);
      return come_after(event.stream, {event.count, other.event});
    }
    of_host.push_back({event.stream, other.number});
    for (std::size_t g = 0; g < kStreams; ++g) come_after(g, (*other.after)[g]);
  };
  for (const Event& e : work.waits) after(e);
  if (!done_[s].empty()) after({s, std::ssize(done_[s])});
  const Done own{.by_host = true, .number = tasks_->last(s).count + 1, .after = all};
  done_[s].push_back(own);
  Stretch* stretch = every_work_ ? &now_->works.emplace_back().by_host : nullptr;
  tasks_->enqueue(s, std::move(of_host),
                  [this, number = own.number, s, stretch, of_gpu = std::move(of_gpu),
                   start = std::move(start)]() -> std::unique_ptr<Task> {
                    return or_open([&] {
                      return std::make_unique<HostWork>(*this, number, s, of_gpu, start, stretch);
                    });
                  });
}

void CudaStreams::enqueue(Work work, Start start) {
  if (work.by_host) return queue_by_host(work, std::move(start));
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
  if (mode_ == Mode::queue) join();
  if (mode_ == Mode::record) {
    end_section();
    now_->recorded = true;
    mode_ = Mode::queue;
    recording_ += seconds_since(begin_);
    // While large operations are recorded, NCCL copies what they need to the GPU on a stream of its
    // own, for which a graph does not wait.
    CUDA_TRY(cudaDeviceSynchronize());
    launch();
  }
  wait();
  for (std::size_t s = 0; s < kStreams; ++s) tasks_->wait(tasks_->last(s));  // for what they threw
  mode_ = Mode::idle;
  return times();
}

static double between(cudaEvent_t from, cudaEvent_t to) {
  float ms = 0;
  CUDA_TRY(cudaEventElapsedTime(&ms, from, to));
  return static_cast<double>(ms) / 1e3;
}

/// By span, what its time counts for. Of a section that is launched several times the last launch
/// is measured, and all of them together; one that ends a section is no work.
std::vector<double> CudaStreams::factors() const {
  const auto& spans = now_->spans;
  std::vector<double> all;
  for (const Span& span : spans) all.push_back(span.what == Span::What::end ? 0 : 1);
  const auto& sections = now_->sections;
  for (std::size_t i = 0; i + 1 < sections.size(); ++i) {
    const std::size_t begin = sections[i].spans_begin, end = sections[i + 1].spans_begin;
    if (sections[i].times == 1 || begin == 0) continue;
    const double launches = between(spans[begin - 1].from, spans[end].from),
                 last = between(spans[begin].from, spans[end - 1].from);
    for (std::size_t k = begin; k < end && last > 0; ++k) all[k] *= launches / last;
  }
  return all;
}

Times CudaStreams::times() const {
  Times all;
  all.total = seconds_since(begin_);
  const auto& spans = now_->spans;
  const std::vector<double> factor = factors();
  for (std::size_t i = 0; i + 1 < spans.size(); ++i) {
    const double s = factor[i] * between(spans[i].from, spans[i + 1].from);
    if (spans[i].what == Span::What::wait) {
      all.waited[spans[i].index] += s;
    } else if (spans[i].what == Span::What::part) {
      if (all.parts.size() <= spans[i].index) all.parts.resize(spans[i].index + 1);
      all.parts[spans[i].index] += s;
    }
  }
  for (const Timed& t : now_->works) {
    all.works.push_back(t.from == nullptr ? t.by_host
                                          : Stretch{.begin = between(spans.front().from, t.from),
                                                    .end = between(spans.front().from, t.to)});
  }
  return all;
}

}  // namespace tessera::streams
