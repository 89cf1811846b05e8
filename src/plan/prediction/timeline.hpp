// Pictures of a step: which rank does what when, as an SVG for people and as a trace for
// ui.perfetto.dev.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan/prediction/simulate.hpp"

namespace tessera::plan {

/// What a span of time is spent on: a colour of the picture.
enum class Activity : std::uint8_t {
  forward,
  recomputation,  // in backward, of what forward has not kept
  backward,
  optimizer,
  parameters,  // gathers and publishes
  gradients,   // reductions
  tensor,
  messages,
  input_output,
};
/// A kernel that makes gradients is backward's.
Activity activity_of(const Op& op);

struct Span {
  Stream stream = Stream::compute;
  Activity activity = Activity::forward;
  std::int32_t micro_batch = -1;  // none: of the whole step
  double begin = 0, end = 0;      // s
  std::string name;               // as op_name
};
struct RankTimeline {
  std::string name;
  std::vector<Span> spans;
};
/// One step, of all ranks or of those that represent the others.
struct Timeline {
  std::string title;
  std::vector<RankTimeline> ranks;
};

/// When a rank's ops ran, predicted or measured; seconds since the first of the ranks began.
struct TimedRank {
  Plan plan;
  std::vector<OpTime> ops;  // as in its plan
  double begin = 0, end = 0;
};
using TimedStep = std::vector<TimedRank>;
TimedStep timed(const Prediction& prediction);

Timeline timeline_of(const TimedStep& step, const PlanInputs& inputs, std::string title);

/// Timelines one below the other with one scale of time (picture.cpp). A rank has a row of compute,
/// in which gaps are where it stands still and numbers are micro-batches, and below it a thin one a
/// stream that is used. Nothing is drawn narrower than a point: a point has the colour of what
/// fills most of it. Where that leaves too little room for most numbers, a part of the step follows
/// enlarged.
std::string to_svg(std::span<const Timeline> timelines);
/// Chrome's trace event format: a process a rank, a thread a stream, microseconds.
std::string to_trace(std::span<const Timeline> timelines);

}  // namespace tessera::plan

template <>
struct tessera::EnumWords<tessera::plan::Activity> {
  using A = tessera::plan::Activity;
  static constexpr std::array table = {std::pair{A::forward, "forward"},
                                       std::pair{A::recomputation, "recomputation"},
                                       std::pair{A::backward, "backward"},
                                       std::pair{A::optimizer, "optimizer and norm"},
                                       std::pair{A::parameters, "parameters"},
                                       std::pair{A::gradients, "gradients"},
                                       std::pair{A::tensor, "tensor ranks"},
                                       std::pair{A::messages, "between stages"},
                                       std::pair{A::input_output, "input and output"}};
};
