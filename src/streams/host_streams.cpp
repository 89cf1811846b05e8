#include "streams/host_streams.hpp"

namespace tessera::streams {

/// A task whose times are recorded: from its start, after its waits, until it was found complete.
class HostStreams::Timed : public Task {
 public:
  Timed(const HostStreams& streams, Stretch& stretch, const Start& start)
      : streams_(streams), stretch_(stretch) {
    stretch_.begin = streams_.now();
    task_ = start();
  }
  Progress advance() override {
    const Progress progress = task_ ? task_->advance() : Progress::done;
    if (progress == Progress::done) stretch_.end = streams_.now();
    return progress;
  }

 private:
  const HostStreams& streams_;
  Stretch& stretch_;
  std::unique_ptr<Task> task_;
};

bool HostStreams::begin(const Step& step) {
  begin_ = Clock::now();
  for (std::size_t s = 0; s < kStreams; ++s) base_[s] = tasks_->last(s).count;
  next_ = 0;
  times_ = {};
  if (step.timing == Timing::works) times_.works.resize(step.works);
  return true;
}

std::vector<Event> HostStreams::absolute(const std::vector<Event>& waits) const {
  std::vector<Event> all = waits;
  for (Event& e : all) e.count += base_[e.stream];
  return all;
}

void HostStreams::wait(Event event) {
  const double from = now();
  if (tasks_->wait(event)) times_.waited[event.stream] += now() - from;
}

void HostStreams::enqueue(Work work, Start start) {
  const std::size_t index = next_++;
  if (!times_.works.empty()) {
    start = [this, &stretch = times_.works[index], inner = std::move(start)] {
      return std::make_unique<Timed>(*this, stretch, inner);
    };
  }
  tasks_->enqueue(work.stream, absolute(work.waits), std::move(start));
}

void HostStreams::run(const Work& work, const std::function<void()>& f) {
  const std::size_t index = next_++;
  for (const Event& e : absolute(work.waits)) wait(e);
  const double from = now();
  f();
  const double to = now();
  if (!times_.works.empty()) times_.works[index] = {from, to};
  if (times_.parts.size() <= work.part) times_.parts.resize(work.part + 1);
  times_.parts[work.part] += to - from;
  tasks_->complete(work.stream);
}

Times HostStreams::finish() {
  for (std::size_t s = 0; s < kStreams; ++s) {
    if (s != kCompute) wait(tasks_->last(s));
  }
  times_.total = now();
  return std::move(times_);
}

}  // namespace tessera::streams
