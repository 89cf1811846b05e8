#include "plan/prediction/timeline.hpp"

#include <nlohmann/json.hpp>
#include <set>

#include "plan/ir/print.hpp"

namespace tessera::plan {
namespace {

bool makes_gradients(const Op& op) {
  const auto* kernel = std::get_if<kernels::KernelCall>(&op.call);
  return kernel != nullptr && std::visit(
                                  [](const auto& args) {
                                    using Args = std::decay_t<decltype(args)>;
                                    return requires { args.d_y; }
                                    || requires { args.d_out; }
                                    || requires { args.d; }
                                    || std::is_same_v<Args, kernels::ClassifyGradient> ||
                                        std::is_same_v<Args, kernels::ScoreGradient>;
                                  },
                                  *kernel);
}

}  // namespace

Activity activity_of(const Op& op) {
  switch (op.kind) {
    case OpKind::load_batch:
    case OpKind::fetch:
    case OpKind::evict:
    case OpKind::snapshot: return Activity::input_output;
    case OpKind::experts:
    case OpKind::context:
    case OpKind::tensor: return Activity::tensor;
    case OpKind::send:
    case OpKind::receive: return Activity::messages;
    case OpKind::gather:
    case OpKind::publish: return Activity::parameters;
    case OpKind::reduce_gradients:
    case OpKind::tie_gradients:
    case OpKind::errors:
    case OpKind::momentum:
    case OpKind::gather_gradients: return Activity::gradients;
    case OpKind::sum_gradients:
    case OpKind::norm:
    case OpKind::balance:
    case OpKind::tensor_sums:
    case OpKind::matrices:
    case OpKind::update: return Activity::optimizer;
    case OpKind::kernel: break;
  }
  if (op.again) return Activity::recomputation;
  return makes_gradients(op) ? Activity::backward : Activity::forward;
}

TimedStep timed(const Prediction& prediction) {
  TimedStep step;
  for (std::size_t r = 0; r < prediction.plans.size(); ++r) {
    const SimulatedRank& rank = prediction.simulation.ranks[r];
    step.push_back({.plan = prediction.plans[r], .ops = rank.ops, .begin = 0, .end = rank.end});
  }
  return step;
}

Timeline timeline_of(const TimedStep& step, const PlanInputs& inputs, std::string title) {
  Timeline t{.title = std::move(title), .ranks = {}};
  for (const TimedRank& r : step) {
    const MeshPlace& place = r.plan.place;
    RankTimeline rank{.name = fmt::format("stage {}", place.pipeline), .spans = {}};
    if (place.data > 0) rank.name += fmt::format(", data {}", place.data);
    if (place.tensor > 0) rank.name += fmt::format(", tensor {}", place.tensor);
    for (std::size_t i = 0; i < r.plan.ops.size(); ++i) {
      const Op& op = r.plan.ops[i];
      rank.spans.push_back({op.stream, activity_of(op), op.micro_batch, r.ops[i].begin,
                            r.ops[i].end, op_name(op, inputs)});
    }
    t.ranks.push_back(std::move(rank));
  }
  return t;
}

std::string to_trace(std::span<const Timeline> timelines) {
  using Json = nlohmann::ordered_json;
  Json events = Json::array();
  int process = 0;
  const auto name = [&](const char* what, int thread, std::string_view text) {
    events.push_back({{"name", what},
                      {"ph", "M"},
                      {"pid", process},
                      {"tid", thread},
                      {"args", {{"name", text}}}});
  };
  for (const Timeline& t : timelines) {
    for (const RankTimeline& rank : t.ranks) {
      name("process_name", 0, t.title + ": " + rank.name);
      std::set<Stream> used;
      for (const Span& s : rank.spans) {
        if (used.insert(s.stream).second)
          name("thread_name", static_cast<int>(s.stream), enum_word(s.stream));
        events.push_back({{"name", s.name},
                          {"cat", enum_word(s.activity)},
                          {"ph", "X"},
                          {"pid", process},
                          {"tid", static_cast<int>(s.stream)},
                          {"ts", s.begin * 1e6},
                          {"dur", (s.end - s.begin) * 1e6}});
      }
      ++process;
    }
  }
  return Json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump();
}

}  // namespace tessera::plan
