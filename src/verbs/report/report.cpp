// tessera report: one page of one or several runs, from their run directories.
#include <CLI/CLI.hpp>

#include <cmath>
#include <map>

#include "core/bytes.hpp"
#include "core/terminal.hpp"
#include "io/file.hpp"
#include "verbs/report/chart.hpp"
#include "verbs/report/parts.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

struct ReportOptions {
  std::vector<std::string> runs;
  std::string out = "report.html", machine;
};

/// The figures that one looks for first.
void tiles(Page& page, const RunRecord& run) {
  page.markup("<div class=\"tiles\">\n");
  const auto tile = [&](std::string_view name, const std::string& value) {
    if (value.empty()) return;
    page.markup("<div><b>").text(value).markup("</b><span>").text(name).markup("</span></div>\n");
  };
  const auto number = [](double value, std::string_view unit = "") {
    return std::isnan(value) ? "" : short_number(value).append(unit);
  };
  const StepRecord last = run.steps.empty() ? StepRecord{} : run.steps.back();
  tile("state", state_of(run));
  tile("last step", fmt::format("{}", last.step));
  tile("loss", number(last.loss));
  if (!run.evaluations.empty())
    tile(fmt::format("evaluation at step {}", run.evaluations.back().step),
         number(run.evaluations.back().loss));
  tile("tokens", number(last.tokens));
  tile("tokens a second, the usual step", number(usual(run, &StepRecord::tokens_per_s)));
  tile("ms, the usual step", number(usual(run, &StepRecord::step_ms)));
  tile("MFU, the usual step", number(100 * usual(run, &StepRecord::mfu), " %"));
  tile(run.by_the_clock ? "since the first step" : "time in steps", hours_text(last.elapsed));
  if (run.starts.empty()) return static_cast<void>(page.markup("</div>\n"));
  const Start& start = run.starts.back();
  tile((start.ranks == 1 ? "rank on " : "ranks on ") + count_text(start.nodes, "node"),
       fmt::format("{}", start.ranks));
  tile("parameters", number(start.parameters));
  if (start.predicted_bytes >= 0)
    tile("memory of a rank, predicted",
         human_bytes(static_cast<std::int64_t>(start.predicted_bytes)));
  tile(run.starts.size() == 2 ? "restart" : "restarts", fmt::format("{}", run.starts.size() - 1));
  page.markup("</div>\n");
}

void run_part(Page& page, const RunRecord& run, std::size_t number,
              const std::optional<deck::Machine>& machine, std::vector<std::string>& missing) {
  const auto id = [&](const char* part) { return fmt::format("run{}_{}", number, part); };
  page.heading(1, id("top"), run.name);
  page.paragraph(run.directory.string(), "faint");
  tiles(page, run);
  page.heading(2, id("charts"), "Over its steps");
  charts_part(page, run);
  page.heading(2, id("starts"), "Starts, and what changed between them");
  starts_part(page, run);
  page.heading(2, id("logbook"), "Logbook");
  logbook_part(page, run);
  page.heading(2, id("memory"), "Memory of a rank");
  memory_part(page, run, missing);
  page.heading(2, id("step"), "A step");
  step_part(page, run, machine, missing);
  page.heading(2, id("deck"), "Deck");
  deck_part(page, run);
}

/// Runs of one name are called by their directories.
void tell_apart(std::vector<RunRecord>& runs) {
  std::map<std::string, int> counts;
  for (const RunRecord& run : runs) ++counts[run.name];
  for (RunRecord& run : runs) {
    if (counts[run.name] > 1) run.name += fmt::format(" in {}", run.directory.string());
  }
}

ExitCode report_runs(const ReportOptions& o) {
  io::check_out(o.out, "report.html");
  std::optional<deck::Machine> machine;
  if (!o.machine.empty()) machine = deck::load_machine(o.machine);
  std::vector<RunRecord> runs;
  std::int64_t steps = 0;
  for (const std::string& directory : o.runs) {
    runs.push_back(read_run(directory));
    steps += std::ssize(runs.back().steps);
  }
  tell_apart(runs);
  Page page("Tessera: " + (runs.size() == 1 ? runs[0].name : count_text(std::ssize(runs), "run")));
  std::vector<std::string> missing;
  if (runs.size() > 1) comparison_part(page, runs);
  for (std::size_t i = 0; i < runs.size(); ++i) run_part(page, runs[i], i + 1, machine, missing);
  const std::string html = page.finish();
  io::write_text(o.out, html);
  for (const std::string& what : missing) fmt::print("not in it: {}\n", printable(what));
  fmt::print("{}: {}, {}, {}\n", printable(o.out), count_text(std::ssize(runs), "run"),
             count_text(steps, "step"), human_bytes(std::ssize(html)));
  return ExitCode::ok;
}

}  // namespace

Verb report(CLI::App& app) {
  auto* verb = app.add_subcommand(
      "report", "one page of one or several runs, for a browser; needs no network");
  auto o = std::make_shared<ReportOptions>();
  verb->add_option("RUN", o->runs, "run directories")->required();
  verb->add_option("--out", o->out, "the page")->capture_default_str();
  verb->add_option("--machine", o->machine,
                   "machine file for which a step is predicted, above the measured one");
  return {.launch = Launch::single, .run = [o] { return report_runs(*o); }, .run_on_ranks = {}};
}

}  // namespace tessera::verbs
