#include "verbs/report/record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.hpp"
#include "core/mesh.hpp"
#include "core/regular_file.hpp"
#include "io/file.hpp"
#include "io/json.hpp"

namespace tessera::verbs {
namespace {

using io::JsonCursor;

/// Where a number of a step is: a member, or a member of a member.
struct StepField {
  const char *name, *part;
  double StepRecord::*to;
};
constexpr StepField kStepFields[] = {
    {"time", nullptr, &StepRecord::time},
    {"loss", nullptr, &StepRecord::loss},
    {"grad_norm", nullptr, &StepRecord::grad_norm},
    {"lr", nullptr, &StepRecord::lr},
    {"loss_scale", nullptr, &StepRecord::loss_scale},
    {"tokens", nullptr, &StepRecord::tokens},
    {"step_ms", nullptr, &StepRecord::step_ms},
    {"tokens_per_s", nullptr, &StepRecord::tokens_per_s},
    {"mfu", nullptr, &StepRecord::mfu},
    {"tflops_per_rank", nullptr, &StepRecord::tflops_per_rank},
    {"comm_exposed_ms", nullptr, &StepRecord::comm_exposed_ms},
    {"pipeline_exposed_ms", nullptr, &StepRecord::pipeline_exposed_ms},
    {"io_exposed_ms", nullptr, &StepRecord::io_exposed_ms},
    {"data_exposed_ms", nullptr, &StepRecord::data_exposed_ms},
    {"compute_ms", "median", &StepRecord::compute_ms},
    {"wire_bytes", "intra", &StepRecord::wire_intra},
    {"wire_bytes", "inter", &StepRecord::wire_inter},
    {"io_bytes", "read", &StepRecord::io_read},
    {"io_bytes", "write", &StepRecord::io_write}};

double number_of(const JsonCursor& object, std::string_view name) {
  const auto value = object.find(name);
  return value ? value->number() : kNone;
}
std::string text_of(const JsonCursor& object, std::string_view name) {
  const auto value = object.find(name);
  if (!value) return "";
  if (value->is_text()) return value->text();
  if (value->raw().is_number_float()) return fmt::format("{:.6g}", value->number());
  return value->raw().dump(-1, ' ', true);
}

class Reader {
 public:
  explicit Reader(RunRecord& run) : run_(run) {}

  void add(const JsonCursor& event) {
    constexpr std::int64_t kMost = std::int64_t{1} << 53;
    const std::string& kind = event["event"].text();
    std::int64_t step = last_;
    if (const auto at = event.find("step")) step = at->integer(0, kMost);
    if (kind == "step") return add_step(event, step);
    if (kind == "start") return add_start(event);
    if (kind == "resume") return add_resume(event, step);
    if (kind == "end") return add_end(event, step);
    if (kind == "evaluate") {
      evaluations_[step] = number_of(event, "loss");
      return;
    }
    if (kind == "rollback") give_up_after(event["to"].integer(0, kMost));
    const std::string what = kind == "fault" ? text_of(event, "what") : "";
    if (what == "armed" || what == "spent") return;  // a test's fault that has not happened now
    for (const MarkedEvent& marked : kMarked) {
      if (kind == marked.word) add_event(marked.kind, step, sentence(event, kind));
    }
  }

  void finish() {
    for (auto& [step, record] : steps_) run_.steps.push_back(record);
    for (const auto& [step, loss] : evaluations_) run_.evaluations.push_back({step, loss});
    std::ranges::stable_sort(run_.events, {}, &RunEvent::step);
    run_.by_the_clock = !run_.steps.empty() && std::ranges::none_of(run_.steps, [](const auto& s) {
      return std::isnan(s.time);
    });
    double seconds = 0, latest = 0;
    const double first = run_.by_the_clock ? run_.steps.front().time : 0;
    for (StepRecord& s : run_.steps) {
      seconds += std::isnan(s.step_ms) ? 0 : s.step_ms / 1e3;
      // Steps that were done again may be later than those that follow them.
      latest = std::max(latest, run_.by_the_clock ? s.time - first : seconds);
      s.elapsed = latest / 3600;
    }
  }

 private:
  struct MarkedEvent {
    const char* word;
    EventKind kind;
  };
  static constexpr MarkedEvent kMarked[] = {{"fault", EventKind::fault},
                                            {"rollback", EventKind::rollback},
                                            {"skip", EventKind::skip},
                                            {"spike", EventKind::warning},
                                            {"straggler", EventKind::warning},
                                            {"pace", EventKind::warning},
                                            {"clocks", EventKind::warning},
                                            {"data_changed", EventKind::warning},
                                            {"lr_moved", EventKind::warning},
                                            {"signal", EventKind::stop},
                                            {"checkpoint", EventKind::checkpoint}};

  void add_event(EventKind kind, std::int64_t step, std::string text) {
    run_.events.push_back({.kind = kind, .step = step, .text = std::move(text)});
  }

  /// The members of an event in a row, but for those that say when it was.
  static std::string sentence(const JsonCursor& event, const std::string& kind) {
    std::string text = kind;
    event.for_each_member([&](const std::string& name, const JsonCursor&) {
      if (name == "event" || name == "step" || name == "time") return;
      if (const std::string value = text_of(event, name); !value.empty())
        text += fmt::format("{} {} {}", text == kind ? ":" : ",", name, value);
    });
    return text;
  }

  void add_step(const JsonCursor& event, std::int64_t step) {
    if (!event.find("step")) event["step"].integer();  // complains
    StepRecord record{.step = step};
    for (const StepField& field : kStepFields) {
      const auto value = event.find(field.name);
      if (!value) continue;
      record.*field.to = field.part == nullptr ? value->number() : number_of(*value, field.part);
    }
    if (const auto corpora = event.find("corpora")) add_corpora(*corpora, record.by_corpus);
    if (const auto experts = event.find("experts")) add_experts(*experts, record);
    if (const auto skipped = event.find("skipped")) record.skipped = skipped->boolean();
    steps_[step] = record;
    last_ = step;
  }

  static void add_experts(const JsonCursor& layers, StepRecord& record) {
    double most = 0, sum = 0, count = 0;
    layers.for_each_item([&](const JsonCursor& layer) {
      const double of_layer = layer["most"].number();
      most = std::max(most, of_layer), sum += of_layer, ++count;
    });
    if (count > 0) record.most_chosen = most, record.most_chosen_mean = sum / count;
  }

  /// Starts of a run may differ in the corpora of their mixtures.
  void add_corpora(const JsonCursor& corpora, std::vector<double>& losses) {
    corpora.for_each_item([&](const JsonCursor& corpus) {
      const std::string& data = corpus["data"].text();
      const auto at =
          static_cast<std::size_t>(std::ranges::find(run_.corpora, data) - run_.corpora.begin());
      if (at == run_.corpora.size()) run_.corpora.push_back(data);
      if (losses.size() <= at) losses.resize(at + 1, kNone);
      losses[at] = number_of(corpus, "loss");
    });
  }

  /// A rollback leaves what came after the checkpoint that it returns to.
  void give_up_after(std::int64_t step) {
    steps_.erase(steps_.upper_bound(step), steps_.end());
    evaluations_.erase(evaluations_.upper_bound(step), evaluations_.end());
    last_ = step;
  }

  void add_start(const JsonCursor& event) {
    Start start;
    start.time = number_of(event, "time");
    start.version = text_of(event, "version");
    start.commit = text_of(event, "commit");
    start.command = text_of(event, "command");
    start.parameters = number_of(event, "parameters");
    start.predicted_bytes = number_of(event, "predicted_bytes");
    if (const auto mesh = event.find("mesh")) {
      constexpr std::int64_t kMost = 1 << 24;
      std::vector<std::string> axes;
      for (const Axis& axis : kAxes) {
        const std::int64_t size = (*mesh)[axis.name].integer(1, kMost);
        if (start.ranks > kMost / size) mesh->fail("more ranks than any job has");
        start.ranks *= size;
        axes.push_back(fmt::format("{} {}", size, axis.name));
      }
      start.nodes = (*mesh)["nodes"].integer(1, kMost);
      start.layout =
          fmt::format("{}, ZeRO-{}", fmt::join(axes, " x "), text_of(event, "zero_stage"));
    }
    if (run_.name.empty()) run_.name = text_of(event, "deck");
    if (!run_.starts.empty())
      add_event(EventKind::restart, last_, fmt::format("start {}", run_.starts.size() + 1));
    run_.starts.push_back(std::move(start));
  }

  void add_resume(const JsonCursor& event, std::int64_t step) {
    if (run_.starts.empty()) return;
    Start& start = run_.starts.back();
    start.after = step;
    if (const auto again = event.find("done_again")) start.done_again = again->integer(0);
    if (const auto changed = event.find("changed")) {
      changed->for_each_item([&](const JsonCursor& item) {
        start.changed.push_back(
            {text_of(item, "key"), text_of(item, "saved"), text_of(item, "now")});
      });
    }
    if (!run_.events.empty() && run_.events.back().kind == EventKind::restart) {
      run_.events.back().step = step;
      run_.events.back().text += fmt::format(" goes on from step {}", step);
    }
    last_ = step;
  }

  void add_end(const JsonCursor& event, std::int64_t step) {
    if (run_.starts.empty()) return;
    run_.starts.back().end = {.reason = text_of(event, "reason"),
                              .step = step,
                              .peak_resident_bytes = number_of(event, "peak_resident_bytes"),
                              .resident_growth_bytes = number_of(event, "resident_growth_bytes")};
  }

  RunRecord& run_;
  std::map<std::int64_t, StepRecord> steps_;
  std::map<std::int64_t, double> evaluations_;
  std::int64_t last_ = 0;  // step that was reported
};

}  // namespace

RunRecord read_run(const std::filesystem::path& directory) {
  RunRecord run{.directory = directory};
  const auto path = directory / "metrics.jsonl";
  if (!io::path_exists(path)) {
    throw DataError(
        fmt::format("{}{} is no run directory: it has no metrics.jsonl, which a run "
                    "writes from its first start on",
                    directory.string(), full_path_text(directory)));
  }
  constexpr std::int64_t kLargest = std::int64_t{1} << 32;
  const std::string text = io::read_text(path, kLargest);
  // After a crash of the system zeros may be in the place of what had not come to the disk.
  std::string_view rest = std::string_view(text).substr(0, text.find('\0'));
  Reader reader(run);
  std::int64_t number = 0;
  for (std::size_t end = rest.find('\n'); end != rest.npos; end = rest.find('\n')) {
    const io::JsonDocument line(rest.substr(0, end), fmt::format("{}:{}", path.string(), ++number));
    reader.add(line.root());
    rest.remove_prefix(end + 1);
  }
  if (number == 0)
    throw DataError(fmt::format("{}:1: no event: the run has not begun, or its file was emptied",
                                path.string()));
  reader.finish();
  if (run.name.empty()) run.name = directory.filename().string();
  return run;
}

}  // namespace tessera::verbs
