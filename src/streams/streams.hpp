// The streams of a device, as the executor uses them. Work keeps its order within a stream and
// waits for work of others; all other streams run beside `compute`.
#pragma once

#include <array>

#include "streams/tasks.hpp"

namespace tessera::streams {

/// A piece of work of a step. Events count within the step.
struct Work {
  std::size_t stream = kCompute;
  std::vector<Event> waits;
  bool by_host = false;   // the host does it, whatever the device is
  std::size_t part = 0;   // of compute: the index in Times::parts that its time is added to
  const char* name = "";  // outlives the step; for profilers
};

/// Seconds since the step's begin.
struct Stretch {
  double begin = 0, end = 0;
};

/// Where the time of a step went.
struct Times {
  double total = 0;
  std::vector<double> parts;              // computing, by Work::part
  std::array<double, kStreams> waited{};  // of compute, for each stream
  std::vector<Stretch> works;             // of each piece of work in order, if asked for
};

enum class Timing : std::uint8_t { parts, works };

class Streams {
 public:
  struct Step {
    const void* key = nullptr;  // steps of one key are the same work over the same memory
    std::size_t works = 0;      // pieces of work that it will have
    Timing timing = Timing::parts;
    bool repeatable = true;  // nothing but the device's own work: no hooks between
  };

  virtual ~Streams() = default;
  /// Begins a step. Returns false if the whole step was recorded before and is queued already: then
  /// only finish() is left to call.
  virtual bool begin(const Step& step) = 0;
  /// Work beside compute. `start` is called once the work may begin or, on a device that keeps the
  /// order itself, at once to queue it.
  virtual void enqueue(Work work, Start start) = 0;
  /// Work on the compute stream: `f` does it, or queues it.
  virtual void run(const Work& work, const std::function<void()>& f) = 0;
  /// The work until end_repeat() comes `times` times, one after the other; once within a step.
  /// Returns how often it is to be said: once where it is being recorded, and waits for work before
  /// it then count as if it had come once.
  virtual std::int64_t begin_repeat(std::int64_t times) { return times; }
  virtual void end_repeat() {}
  /// Waits until all is done. Rethrows what work threw.
  virtual Times finish() = 0;
  /// Lets go of what is kept of steps of this key, between steps: another key may be equal to it.
  virtual void forget(const void* /*key*/) {}
  /// Seconds that it took so far to record steps, where they are recorded to be repeated.
  virtual double recording_seconds() const { return 0; }
};

}  // namespace tessera::streams
