// A step's streams on the CPU: the calling thread computes, tasks do the rest.
#pragma once

#include <chrono>

#include "streams/streams.hpp"

namespace tessera::streams {

class HostStreams : public Streams {
 public:
  explicit HostStreams(std::unique_ptr<TaskStreams> tasks) : tasks_(std::move(tasks)) {}

  bool begin(const Step& step) override;
  void enqueue(Work work, Start start) override;
  void run(const Work& work, const std::function<void()>& f) override;
  Times finish() override;

 private:
  class Timed;
  using Clock = std::chrono::steady_clock;
  double now() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  std::vector<Event> absolute(const std::vector<Event>& waits) const;
  void wait(Event event);

  Clock::time_point begin_;
  std::array<std::int64_t, kStreams> base_{};  // pieces of work before the step
  std::size_t next_ = 0;                       // piece of work
  Times times_;
  std::unique_ptr<TaskStreams> tasks_;  // last: tasks use the others
};

}  // namespace tessera::streams
