// A step's streams as CUDA streams. Of a step that repeats the same work, the first run queues its
// work piece by piece, the second records it as a CUDA graph, and the following ones launch that
// graph. Work that comes several times within a step is a graph of its own, which is recorded once
// and launched so often: so graphs are as small as those of a short step. A step in which the host
// does some of the work is queued each time: the host's work asks for CUDA's events, and the GPU
// waits for numbers that the host writes.
#pragma once

#include <cudaTypedefs.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "core/cuda.hpp"
#include "streams/streams.hpp"

namespace tessera::streams {

class CudaStreams : public Streams {
 public:
  /// `queue` is set to the stream of each piece of work while that is queued, within an NVTX range
  /// of its name. `look` is called now and then while finish() waits for the GPU. It throws where
  /// the wait would never end, as for a collective whose peer is gone.
  /// `tasks` carry out the host's work, and may do so on another thread.
  CudaStreams(CudaQueue& queue, std::unique_ptr<TaskStreams> tasks,
              std::function<void()> look = {});
  ~CudaStreams() override;
  CudaStreams(const CudaStreams&) = delete;
  CudaStreams& operator=(const CudaStreams&) = delete;

  bool begin(const Step& step) override;
  void enqueue(Work work, Start start) override;
  void run(const Work& work, const std::function<void()>& f) override;
  std::int64_t begin_repeat(std::int64_t times) override;
  void end_repeat() override;
  Times finish() override;
  void forget(const void* key) override { graphs_.erase(key); }
  double recording_seconds() const override { return recording_; }

 private:
  /// How many pieces of the host's work are complete, by stream, for the GPU to wait for: memory
  /// that both reach.
  class Counters {
   public:
    Counters();
    ~Counters();
    Counters(const Counters&) = delete;
    Counters& operator=(const Counters&) = delete;

    void set(std::size_t stream, std::int64_t count) {
      words_[stream].store(static_cast<std::uint32_t>(count), std::memory_order_release);
    }
    /// Lets all go on that waits, now or later; for good.
    void open_all();
    /// Makes `stream` wait until the counter of `of` is at least `count`.
    void wait(cudaStream_t stream, std::size_t of, std::int64_t count);

   private:
    using Word = std::atomic<std::uint32_t>;
    static_assert(sizeof(Word) == sizeof(std::uint32_t) && Word::is_always_lock_free);
    Word* words_ = nullptr;
    std::atomic<bool> open_ = false;
    PFN_cuStreamWaitValue32_v11070 wait_value_ = nullptr;
  };
  /// A piece of the GPU's work: its place in its stream, and its end.
  struct OnGpu {
    std::int64_t count = 0;
    cudaEvent_t event = nullptr;
  };
  /// By stream, the last that something comes after.
  using AfterGpu = std::array<OnGpu, kStreams>;
  /// Where a piece of work is done: how others wait for it.
  struct Done {
    bool by_host = false;
    std::int64_t number = 0;                // of the host's work of its stream, ever
    std::shared_ptr<const AfterGpu> after;  // of the host's, also by way of other work of the host
    cudaEvent_t event = nullptr;            // of the GPU's
  };
  class HostWork;
  /// What the compute stream does from an event on: the work of a part, or waiting for a stream.
  struct Span {
    enum class What : std::uint8_t { part, wait, end } what = What::end;
    std::size_t index = 0;
    cudaEvent_t from = nullptr;
  };
  /// Begin and end of a piece of work: events of the GPU's, times of the host's.
  struct Timed {
    cudaEvent_t from = nullptr, to = nullptr;
    Stretch by_host;
  };
  /// A part of a step that is a graph, at whose end all streams have come to an end.
  struct Section {
    CudaHandle<cudaGraphExec_t> graph;
    std::int64_t times = 1;       // that it is launched
    std::size_t spans_begin = 0;  // of it; those of the last launch
  };
  /// What one way of queueing a step needs: its own events, and the graphs once there are some.
  struct StepGraphs {
    std::vector<CudaHandle<cudaEvent_t>> events;
    std::size_t used = 0;
    std::vector<Span> spans;
    std::deque<Timed> works;  // where asked for
    std::vector<Section> sections;
    bool recorded = false;  // all of them
  };
  enum class Mode : std::uint8_t { idle, queue, record, replay };

  cudaStream_t stream(std::size_t index) const { return streams_[index].get(); }
  cudaEvent_t new_event();
  cudaEvent_t mark(std::size_t stream);
  void note(Span::What what, std::size_t index);
  const Done& done(const Event& event) const;
  void wait_for(std::size_t stream, std::size_t of, const Done& work);
  void queue_on(const Work& work, const std::function<void()>& f);
  void queue_by_host(const Work& work, Start start);
  template <typename F>
  auto or_open(F&& f);
  void fork();
  void join();
  void begin_section(std::int64_t times);
  void end_section();
  void launch();
  void wait();
  std::vector<double> factors() const;
  Times times() const;

  CudaQueue& queue_;
  std::function<void()> look_;
  std::array<CudaHandle<cudaStream_t>, kStreams> streams_;
  /// By stream, of each piece of work of the step that is being queued: what others wait for.
  std::array<std::vector<Done>, kStreams> done_;
  std::vector<CudaHandle<cudaEvent_t>> done_events_;  // for done_, of which the step uses so many:
  std::size_t used_events_ = 0;
  /// How many done_ has, by stream, of what comes before the section that is being recorded and is
  /// over when that begins.
  std::array<std::int64_t, kStreams> before_section_{};
  std::map<const void*, StepGraphs> graphs_;  // by key
  StepGraphs once_;                           // of steps that are not repeated
  double recording_ = 0;                      // s
  StepGraphs* now_ = nullptr;
  Mode mode_ = Mode::idle;
  bool every_work_ = false;
  std::chrono::steady_clock::time_point begin_;
  int gpu_ = 0;
  Counters counters_;
  std::unique_ptr<TaskStreams> tasks_;  // last: the host's work uses the others
};

}  // namespace tessera::streams
