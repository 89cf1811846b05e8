// The charts of one run, and of several over each other.
#include <algorithm>
#include <map>

#include "core/bytes.hpp"
#include "core/error.hpp"
#include "deck/load.hpp"
#include "deck/resume.hpp"
#include "guard/median.hpp"
#include "io/file.hpp"
#include "verbs/report/chart.hpp"
#include "verbs/report/parts.hpp"

template <>
struct tessera::EnumWords<tessera::verbs::EventKind> {
  using K = tessera::verbs::EventKind;
  static constexpr std::array table = {
      std::pair{K::restart, "restart"},      std::pair{K::fault, "fault"},
      std::pair{K::rollback, "rollback"},    std::pair{K::skip, "skip"},
      std::pair{K::warning, "warning"},      std::pair{K::stop, "stop"},
      std::pair{K::checkpoint, "checkpoint"}};
};

namespace tessera::verbs {
namespace {

using Form = ChartLine::Form;
using Member = double StepRecord::*;

struct LineOf {
  const char* name;
  Member member;
};

/// Lines of a run's steps, but for what it never recorded, or had at 0 all along.
std::vector<ChartLine> lines_of(const RunRecord& run, std::initializer_list<LineOf> members,
                                Form form) {
  std::vector<ChartLine> lines;
  for (const LineOf& of : members) {
    ChartLine line{.name = of.name, .x = {}, .y = {}, .form = form};
    bool any = false;
    for (const StepRecord& s : run.steps) {
      line.x.push_back(static_cast<double>(s.step));
      line.y.push_back(s.*of.member);
      any = any || (std::isfinite(line.y.back()) && line.y.back() != 0);
    }
    if (any) lines.push_back(std::move(line));
  }
  return lines;
}

/// The training loss of each corpus of a mixture.
std::vector<ChartLine> lines_by_corpus(const RunRecord& run) {
  std::vector<ChartLine> lines;
  for (std::size_t i = 0; i < run.corpora.size(); ++i) {
    ChartLine line{.name = run.corpora[i], .x = {}, .y = {}, .form = Form::smoothed};
    for (const StepRecord& s : run.steps) {
      line.x.push_back(static_cast<double>(s.step));
      line.y.push_back(i < s.by_corpus.size() ? s.by_corpus[i] : kNone);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<ChartMark> marks_of(const RunRecord& run) {
  std::vector<ChartMark> marks;
  for (const RunEvent& e : run.events) {
    marks.push_back({.x = static_cast<double>(e.step),
                     .kind = std::string(enum_word(e.kind)),
                     .text = fmt::format("step {}: {}", e.step, e.text)});
  }
  std::ranges::stable_sort(marks, {}, &ChartMark::kind);
  return marks;
}

/// The kinds of marks that there are, for those who look at the charts.
void marks_legend(Page& page, const RunRecord& run) {
  std::map<EventKind, std::int64_t> counts;
  for (const RunEvent& e : run.events) ++counts[e.kind];
  if (counts.empty()) return;
  page.markup("<p class=\"marks\">On the axis: ");
  for (const auto& [kind, count] : counts) {
    const std::string_view word = enum_word(kind);
    page.markup(
        fmt::format("<span><svg viewBox=\"0 0 22 14\"><line x1=\"11\" x2=\"11\" y1=\"0\" "
                    "y2=\"14\" class=\"mark {}\"/></svg>{}</span>",
                    word, count_text(count, word)));
  }
  page.markup("</p>\n");
}

ChartLine memory_line(const RunRecord& run) {
  ChartLine line{.name = "arenas, predicted", .x = {}, .y = {}};
  const double last = run.steps.empty() ? 0 : static_cast<double>(run.steps.back().step);
  for (std::size_t i = 0; i < run.starts.size(); ++i) {
    const double begin = static_cast<double>(run.starts[i].after),
                 end = i + 1 < run.starts.size() ? static_cast<double>(run.starts[i + 1].after)
                                                 : last;
    line.x.insert(line.x.end(), {begin, std::max(begin, end)});
    line.y.insert(line.y.end(), 2, run.starts[i].predicted_bytes);
  }
  return line;
}

Chart memory_chart(const RunRecord& run) {
  ChartLine peak{.name = "the process at most", .x = {}, .y = {}, .form = Form::dots};
  for (const Start& start : run.starts) {
    if (!start.end) continue;
    peak.x.push_back(static_cast<double>(start.end->step));
    peak.y.push_back(start.end->peak_resident_bytes);
  }
  Chart chart{.title = "Memory of a rank", .unit = "", .lines = {memory_line(run)}};
  if (!peak.x.empty()) chart.lines.push_back(std::move(peak));
  chart.unit = scale_bytes(chart.lines);
  return chart;
}

Chart bytes_chart(const RunRecord& run, const char* title, std::initializer_list<LineOf> members) {
  Chart chart{.title = title, .unit = "", .lines = lines_of(run, members, Form::line)};
  chart.unit = scale_bytes(chart.lines) + " a step";
  return chart;
}

std::vector<Chart> charts_of(const RunRecord& run) {
  using R = StepRecord;
  std::vector<Chart> charts;
  Chart& loss =
      charts.emplace_back(Chart{.title = "Loss",
                                .unit = "",
                                .lines = lines_of(run, {{"training", &R::loss}}, Form::smoothed)});
  ChartLine evaluated{.name = "evaluation", .x = {}, .y = {}, .form = Form::dots};
  for (const Evaluation& e : run.evaluations) {
    evaluated.x.push_back(static_cast<double>(e.step));
    evaluated.y.push_back(e.loss);
  }
  if (!evaluated.x.empty()) loss.lines.push_back(std::move(evaluated));
  if (!run.corpora.empty())
    charts.push_back(
        {.title = "Loss by corpus", .unit = "training", .lines = lines_by_corpus(run)});
  const auto balance = lines_of(
      run, {{"the worst layer", &R::most_chosen}, {"mean of layers", &R::most_chosen_mean}},
      Form::smoothed);
  if (!balance.empty()) {
    charts.push_back({.title = "Balance of experts",
                      .unit = "choices of the most chosen, over the mean",
                      .lines = balance});
  }
  charts.push_back({.title = "Norm of the gradient",
                    .unit = "before clipping",
                    .lines = lines_of(run, {{"norm", &R::grad_norm}}, Form::smoothed),
                    .scale = Chart::Scale::logarithmic_where_wide});
  charts.push_back({.title = "Learning rate",
                    .unit = "",
                    .lines = lines_of(run, {{"rate", &R::lr}}, Form::line)});
  charts.push_back({.title = "Speed",
                    .unit = "tokens a second",
                    .lines = lines_of(run, {{"tokens/s", &R::tokens_per_s}}, Form::smoothed)});
  charts.push_back({.title = "Time of a step",
                    .unit = "ms",
                    .lines = lines_of(run,
                                      {{"step", &R::step_ms},
                                       {"waits for communication", &R::comm_exposed_ms},
                                       {"for other stages", &R::pipeline_exposed_ms},
                                       {"for offloads, snapshots", &R::io_exposed_ms},
                                       {"for data", &R::data_exposed_ms}},
                                      Form::smoothed)});
  charts.push_back(memory_chart(run));
  charts.push_back(
      bytes_chart(run, "Bytes that a rank sends",
                  {{"within its node", &R::wire_intra}, {"to other nodes", &R::wire_inter}}));
  charts.push_back(bytes_chart(run, "Bytes of files, of rank 0",
                               {{"read", &R::io_read}, {"written", &R::io_write}}));
  charts.push_back({.title = "Loss scale",
                    .unit = "",
                    .lines = lines_of(run, {{"scale", &R::loss_scale}}, Form::line),
                    .scale = Chart::Scale::logarithmic_where_wide});
  const auto same = [](const StepRecord& a, const StepRecord& b) {
    return a.loss_scale != b.loss_scale;
  };
  if (std::ranges::adjacent_find(run.steps, same) == run.steps.end()) charts.pop_back();
  return charts;
}

/// The time at a step, of the nearest that was recorded.
std::string time_at(const RunRecord& run, double step) {
  auto at = std::ranges::lower_bound(
      run.steps, step, {}, [](const StepRecord& s) { return static_cast<double>(s.step); });
  if (at == run.steps.end()) --at;
  if (step < static_cast<double>(run.steps.front().step)) return "";
  return hours_text(at->elapsed);
}

// --- Several runs ------------------------------------------------------------------------------

std::vector<ChartLine> of_runs(std::span<const RunRecord> runs, Member y, Member x, Form form) {
  std::vector<ChartLine> lines;
  for (const RunRecord& run : runs) {
    ChartLine line{.name = run.name, .x = {}, .y = {}, .form = form};
    for (const StepRecord& s : run.steps) {
      const double at = x == nullptr ? static_cast<double>(s.step) : s.*x;
      if (!std::isfinite(at)) continue;
      line.x.push_back(at);
      line.y.push_back(s.*y);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<ChartLine> evaluations_of(std::span<const RunRecord> runs) {
  std::vector<ChartLine> lines;
  for (const RunRecord& run : runs) {
    ChartLine line{.name = run.name, .x = {}, .y = {}, .form = Form::dots};
    for (const Evaluation& e : run.evaluations) {
      line.x.push_back(static_cast<double>(e.step));
      line.y.push_back(e.loss);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

/// Turns hours into what keeps numbers short; returns its name.
const char* scale_hours(std::vector<ChartLine>& lines) {
  struct Unit {
    double hours;  // from which on it is used
    double each;   // of an hour
    const char* name;
  };
  constexpr Unit kUnits[] = {{2, 1, "hours"}, {2.0 / 60, 60, "minutes"}, {0, 3600, "seconds"}};
  double most = 0;
  for (const ChartLine& line : lines) most = line.x.empty() ? most : std::max(most, line.x.back());
  const Unit& unit = *std::ranges::find_if(kUnits, [&](const Unit& u) { return most >= u.hours; });
  for (ChartLine& line : lines) {
    for (double& x : line.x) x *= unit.each;
  }
  return unit.name;
}

std::string shown(double value, const char* unit = "") {
  return std::isnan(value) ? "" : short_number(value) + unit;
}

std::vector<std::string> comparison_row(const RunRecord& run) {
  const StepRecord last = run.steps.empty() ? StepRecord{} : run.steps.back();
  double evaluated = kNone;
  for (const Evaluation& e : run.evaluations) evaluated = std::fmin(evaluated, e.loss);
  const Start start = run.starts.empty() ? Start{} : run.starts.back();
  return {run.name,
          state_of(run),
          fmt::format("{}", last.step),
          shown(last.tokens),
          shown(last.loss),
          shown(evaluated),
          shown(usual(run, &StepRecord::tokens_per_s)),
          shown(usual(run, &StepRecord::step_ms)),
          std::isnan(start.predicted_bytes)
              ? ""
              : human_bytes(static_cast<std::int64_t>(start.predicted_bytes)),
          fmt::format("{}", start.ranks),
          start.layout,
          hours_text(last.elapsed),
          fmt::format("{}", std::max<std::int64_t>(0, std::ssize(run.starts) - 1))};
}

/// The keys of the runs' decks in which any differs from the first.
void deck_differences(Page& page, std::span<const RunRecord> runs) {
  std::map<std::string, std::vector<std::string>> values;  // by key
  std::optional<deck::Deck> first;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto path = runs[i].directory / "resolved.toml";
    try {
      const deck::Deck deck = deck::load_deck(path.string()).deck;
      if (!first) first = deck;
      for (const auto& d : deck::compare_for_resume(*first, deck)) {
        auto& row = values.try_emplace(d.key, std::vector(runs.size(), d.saved)).first->second;
        row[i] = d.now;
      }
    } catch (const Error& e) {
      return page.paragraph(e.what(), "bad");
    }
  }
  if (values.empty()) return page.paragraph("Their decks have the same value for every key.");
  std::vector<std::string> header{"key of the deck"};
  for (const RunRecord& run : runs) header.push_back(run.name);
  std::vector<std::vector<std::string>> rows;
  for (const auto& [key, row] : values) {
    rows.push_back({key});
    rows.back().insert(rows.back().end(), row.begin(), row.end());
  }
  page.table(header, rows);
}

}  // namespace

void charts_part(Page& page, const RunRecord& run) {
  if (run.steps.empty()) return page.paragraph("No step was done yet.");
  page.paragraph(
      fmt::format(
          "Over steps; below them {}. Of steps that were done again the last ones are shown.",
          run.by_the_clock ? "the time since the first step" : "the time that the steps took"),
      "faint");
  marks_legend(page, run);
  const std::vector<ChartMark> marks = marks_of(run);
  page.markup("<div class=\"charts\">\n");
  for (Chart& chart : charts_of(run)) {
    chart.marks = marks;
    chart.below = [&](double step) { return time_at(run, step); };
    page.markup(figure(chart));
  }
  page.markup("</div>\n");
}

void comparison_part(Page& page, std::span<const RunRecord> runs) {
  page.heading(1, "comparison", "Comparison");
  std::vector<std::vector<std::string>> rows;
  for (const RunRecord& run : runs) rows.push_back(comparison_row(run));
  const std::vector<std::string> header{
      "run",       "state",         "step",  "tokens", "loss", "best evaluation", "tokens/s",
      "ms a step", "memory a rank", "ranks", "layout", "time", "restarts"};
  page.table(header, rows);
  using R = StepRecord;
  page.markup("<div class=\"charts\">\n");
  const auto add = [&](const char* title, const char* unit, const char* x_name,
                       std::vector<ChartLine> lines) {
    page.markup(
        figure({.title = title, .unit = unit, .lines = std::move(lines), .x_name = x_name}));
  };
  add("Loss", "over steps", "step", of_runs(runs, &R::loss, nullptr, Form::smoothed));
  add("Loss", "over tokens", "tokens", of_runs(runs, &R::loss, &R::tokens, Form::smoothed));
  auto by_time = of_runs(runs, &R::loss, &R::elapsed, Form::smoothed);
  const char* unit = scale_hours(by_time);
  add("Loss", "over time", unit, std::move(by_time));
  add("Evaluation", "over steps", "step", evaluations_of(runs));
  add("Learning rate", "over steps", "step", of_runs(runs, &R::lr, nullptr, Form::line));
  add("Norm of the gradient", "over steps", "step",
      of_runs(runs, &R::grad_norm, nullptr, Form::smoothed));
  add("Speed", "tokens a second, over steps", "step",
      of_runs(runs, &R::tokens_per_s, nullptr, Form::smoothed));
  page.markup("</div>\n");
  page.heading(2, "differences", "What their decks say differently");
  deck_differences(page, runs);
}

double usual(const RunRecord& run, double StepRecord::*member) {
  std::vector<double> values;
  for (std::size_t i = run.steps.size() / 2; i < run.steps.size(); ++i) {
    if (std::isfinite(run.steps[i].*member)) values.push_back(run.steps[i].*member);
  }
  return values.empty() ? kNone : guard::median(std::move(values));
}

std::string hours_text(double hours) {
  if (hours >= 10) return fmt::format("{:.0f} h", hours);
  if (hours >= 1) return fmt::format("{:.1f} h", hours);
  if (hours * 60 >= 2) return fmt::format("{:.0f} min", hours * 60);
  return fmt::format("{:.3g} s", hours * 3600);
}

}  // namespace tessera::verbs
