// A step's streams as CUDA streams. Of a step that repeats the same work, the first run queues its
// work piece by piece, the second records it as a CUDA graph, and the following ones launch that
// graph.
#pragma once

#include <chrono>
#include <map>
#include <optional>

#include "core/cuda.hpp"
#include "streams/streams.hpp"

namespace tessera::streams {

class CudaStreams : public Streams {
 public:
  /// `queue` is set to the stream of each piece of work while that is queued, within an NVTX range
  /// of its name. `look` is called now and then while finish() waits for the GPU. It throws where
  /// the wait would never end, as for a collective whose peer is gone.
  explicit CudaStreams(CudaQueue& queue, std::function<void()> look = {});
  ~CudaStreams() override;
  CudaStreams(const CudaStreams&) = delete;
  CudaStreams& operator=(const CudaStreams&) = delete;

  bool begin(const Step& step) override;
  void enqueue(Work work, Start start) override;
  void run(const Work& work, const std::function<void()>& f) override;
  Times finish() override;

 private:
  /// What the compute stream does from an event on: the work of a part, or waiting for a stream.
  struct Span {
    enum class What : std::uint8_t { part, wait, end } what = What::end;
    std::size_t index = 0;
    cudaEvent_t from = nullptr;
  };
  /// What one way of queueing a step needs: its own events, and the graph once there is one.
  struct StepGraph {
    std::vector<CudaHandle<cudaEvent_t>> events;
    std::size_t used = 0;
    std::vector<Span> spans;
    std::vector<std::pair<cudaEvent_t, cudaEvent_t>> works;  // begin and end, where asked for
    CudaHandle<cudaGraphExec_t> graph;
  };
  enum class Mode : std::uint8_t { idle, queue, record, replay };

  cudaStream_t stream(std::size_t index) const { return streams_[index].get(); }
  cudaEvent_t new_event();
  cudaEvent_t mark(std::size_t stream);
  void note(Span::What what, std::size_t index);
  void wait_for(std::size_t stream, const std::vector<Event>& waits);
  void queue_on(const Work& work, const std::function<void()>& f);
  void fork();
  void join();
  void wait();
  Times times() const;

  CudaQueue& queue_;
  std::function<void()> look_;
  std::array<CudaHandle<cudaStream_t>, kStreams> streams_;
  /// By stream, of each piece of work of the step that is being queued: what other streams wait
  /// for.
  std::array<std::vector<CudaHandle<cudaEvent_t>>, kStreams> done_;
  std::array<std::size_t, kStreams> queued_{};
  std::map<const void*, StepGraph> graphs_;  // by key; without a graph until the step is recorded
  StepGraph once_;                           // of steps that are not repeated
  StepGraph* now_ = nullptr;
  Mode mode_ = Mode::idle;
  bool every_work_ = false;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace tessera::streams
