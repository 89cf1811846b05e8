#include "plan/prediction/timeline.hpp"

#include <algorithm>
#include <cmath>
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
                                    || std::is_same_v<Args, kernels::ClassifyGradient>;
                                  },
                                  *kernel);
}

constexpr const char* kColours[] = {"#4e79a7", "#f28e2b", "#59a14f", "#76b7b2",
                                    "#e15759", "#b07aa1", "#edc948", "#9c755f"};
constexpr double kWidth = 1200, kLeft = 110, kRight = 16, kPlot = kWidth - kLeft - kRight;
constexpr double kComputeHeight = 22, kStreamHeight = 7, kGap = 10, kTitle = 26, kAxis = 24;

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  return out;
}

double last_end(std::span<const Timeline> timelines) {
  double end = 0;
  for (const Timeline& t : timelines) {
    for (const RankTimeline& r : t.ranks) {
      for (const Span& s : r.spans) end = std::max(end, s.end);
    }
  }
  return end;
}

/// Joins neighbours of one activity that less than `gap` lies between: a step may have a hundred
/// thousand spans, a picture has 1200 points.
std::vector<Span> merged(const std::vector<Span>& spans, Stream stream, double gap) {
  std::vector<Span> result;
  for (const Span& s : spans) {
    if (s.stream != stream || s.end <= s.begin) continue;
    if (!result.empty() && result.back().activity == s.activity &&
        s.begin - result.back().end < gap) {
      result.back().end = s.end;
    } else {
      result.push_back(s);
    }
  }
  return result;
}

std::string rectangle(double x, double y, double width, double height, const char* colour) {
  return fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" "
      "fill=\"{}\"/>\n",
      x, y, std::max(width, 0.25), height, colour);
}
std::string words(double x, double y, std::string_view text, std::string_view more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, more, escaped(text));
}

/// 1, 2 or 5 times a power of ten so that there are some ten ticks.
double tick_of(double end) {
  const double power = std::pow(10, std::floor(std::log10(end / 10)));
  for (const double times : {1.0, 2.0, 5.0}) {
    if (end / (times * power) <= 10) return times * power;
  }
  return 10 * power;
}

std::string axis(double y, double top, double end) {
  std::string out;
  const double tick = tick_of(end);
  for (int i = 0; i * tick <= end; ++i) {
    const double x = kLeft + kPlot * i * tick / end;
    out += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" "
        "stroke=\"#bbb\" stroke-width=\"0.5\"/>\n",
        x, top, y);
    out += words(x, y + 13, fmt::format("{:g} ms", i * tick * 1e3), "text-anchor=\"middle\"");
  }
  return out;
}

std::string legend(double y) {
  std::string out;
  double x = kLeft;
  for (const auto& [activity, word] : EnumWords<Activity>::table) {
    out += rectangle(x, y, 12, 12, at(kColours, activity));
    out += words(x + 16, y + 10, word);
    x += 34 + 6.5 * static_cast<double>(std::string_view(word).size());
  }
  return out;
}

}  // namespace

Activity activity_of(const Op& op) {
  switch (op.kind) {
    case OpKind::load_batch:
    case OpKind::fetch:
    case OpKind::evict:
    case OpKind::snapshot: return Activity::input_output;
    case OpKind::tensor: return Activity::tensor;
    case OpKind::send:
    case OpKind::receive: return Activity::messages;
    case OpKind::gather:
    case OpKind::publish: return Activity::parameters;
    case OpKind::reduce_gradients:
    case OpKind::tie_gradients:
    case OpKind::errors:
    case OpKind::gather_gradients: return Activity::gradients;
    case OpKind::sum_gradients:
    case OpKind::norm:
    case OpKind::update: return Activity::optimizer;
    case OpKind::kernel: break;
  }
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
      rank.spans.push_back(
          {op.stream, activity_of(op), r.ops[i].begin, r.ops[i].end, op_name(op, inputs)});
    }
    t.ranks.push_back(std::move(rank));
  }
  return t;
}

std::string to_svg(std::span<const Timeline> timelines) {
  const double end = std::max(last_end(timelines), 1e-9), point = end / kPlot;
  std::string body = legend(10);
  double y = 34;
  for (const Timeline& t : timelines) {
    body += words(kLeft, y + 16, t.title, "font-weight=\"bold\"");
    const double top = y += kTitle;
    std::string bars;
    for (const RankTimeline& rank : t.ranks) {
      bars += words(kLeft - 8, y + 15, rank.name, "text-anchor=\"end\"");
      bars += rectangle(kLeft, y, kPlot, kComputeHeight, "#eeeeee");
      for (std::size_t s = 0; s < kStreams; ++s) {
        const auto spans = merged(rank.spans, static_cast<Stream>(s), point / 2);
        if (s > 0 && spans.empty()) continue;
        const double height = s == 0 ? kComputeHeight : kStreamHeight;
        for (const Span& span : spans) {
          bars += rectangle(kLeft + span.begin / point, y, (span.end - span.begin) / point,
                            height - 1, at(kColours, span.activity));
        }
        y += height;
      }
      y += kGap;
    }
    body += axis(y, top, end) + bars;
    y += kAxis;
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0} {1:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{2}</svg>",
      kWidth, y + 8, body);
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
