#include "verbs/report/parts.hpp"

#include <algorithm>

#include "core/bytes.hpp"
#include "core/clock.hpp"
#include "core/svg.hpp"
#include "io/file.hpp"
#include "train/report/resolved.hpp"
#include "verbs/check/check.hpp"
#include "verbs/report/chart.hpp"
#include "verbs/simulate/simulate.hpp"
#include "verbs/step_times.hpp"

namespace tessera::verbs {
namespace {

std::string bytes_text(double bytes) {
  constexpr double kMost = 0x1p62;
  return bytes >= 0 && bytes < kMost ? human_bytes(static_cast<std::int64_t>(bytes)) : "";
}

std::string moment_text(double unix_seconds) {
  constexpr double kMost = 1e11;
  if (!(unix_seconds >= 0 && unix_seconds < kMost)) return "";
  return utc_text(std::chrono::system_clock::from_time_t(static_cast<std::time_t>(unix_seconds)));
}

std::vector<std::string> start_row(const RunRecord& run, std::size_t i) {
  const Start& start = run.starts[i];
  std::string ended = "no end was written";
  if (start.end) ended = fmt::format("{}, step {}", start.end->reason, start.end->step);
  return {fmt::format("{}", i + 1),
          moment_text(start.time),
          fmt::format("{}", start.after + 1),
          fmt::format("{}", start.done_again),
          fmt::format("{}, {}: {}", count_text(start.ranks, "rank"),
                      count_text(start.nodes, "node"), start.layout),
          fmt::format("{} {}", start.version, start.commit),
          bytes_text(start.predicted_bytes),
          start.end ? bytes_text(start.end->peak_resident_bytes) : "",
          ended};
}

/// A start's plan of its layout, from the deck that the run directory keeps.
LayoutOptions layout_of(const RunRecord& run) {
  LayoutOptions layout;
  layout.deck.path = (run.directory / "resolved.toml").string();
  layout.ranks = run.starts.back().ranks;
  layout.nodes = run.starts.back().nodes;
  return layout;
}

/// Says on the page, and to whoever asked for it, what is not there and why.
void say_missing(Page& page, const RunRecord& run, std::vector<std::string>& missing,
                 const std::string& what, const std::string& why) {
  page.paragraph(fmt::format("{}: {}", what, why), "bad");
  missing.push_back(fmt::format("{}: {}: {}", run.directory.string(), what, why));
}

/// A median step's time by what it was spent on.
void time_table(Page& page, const RunRecord& run) {
  using R = StepRecord;
  const double step = usual(run, &R::step_ms);
  if (!(step > 0)) return;
  struct Row {
    const char* name;
    double StepRecord::*member;
  };
  constexpr Row kRows[] = {{"computing (the median rank)", &R::compute_ms},
                           {"waiting for communication", &R::comm_exposed_ms},
                           {"of it, for other stages", &R::pipeline_exposed_ms},
                           {"waiting for offloads, snapshots", &R::io_exposed_ms},
                           {"waiting for data", &R::data_exposed_ms},
                           {"a step in all", &R::step_ms}};
  page.markup(
      "<div class=\"wide\"><table><thead><tr><th>median of the later half of the steps"
      "</th><th class=\"n\">ms</th><th class=\"n\">%</th><th></th></tr></thead><tbody>\n");
  for (const Row& row : kRows) {
    const double ms = usual(run, row.member);
    if (!std::isfinite(ms)) continue;
    const double share = std::clamp(100 * ms / step, 0.0, 100.0);
    page.markup(
        fmt::format("<tr><td>{}</td><td class=\"n\">{:.2f}</td><td class=\"n\">{:.1f}</td>"
                    "<td><span class=\"bar\" style=\"width:{:.1f}rem\"></span></td></tr>\n",
                    row.name, ms, share, share / 5));
  }
  page.markup("</tbody></table></div>\n");
}

}  // namespace

std::optional<std::string> file_of(const RunRecord& run, const char* name) {
  constexpr std::int64_t kLargest = std::int64_t{64} << 20;
  const auto path = run.directory / name;
  if (!io::path_exists(path)) return std::nullopt;
  return io::read_text(path, kLargest);
}

std::string state_of(const RunRecord& run) {
  if (run.starts.empty() || !run.starts.back().end) return "killed, or still at work";
  return run.starts.back().end->reason;
}

void starts_part(Page& page, const RunRecord& run) {
  std::vector<std::vector<std::string>> rows, changes;
  for (std::size_t i = 0; i < run.starts.size(); ++i) {
    rows.push_back(start_row(run, i));
    for (const KeyChange& c : run.starts[i].changed)
      changes.push_back({fmt::format("{}", i + 1), c.key, c.saved, c.now});
  }
  const std::vector<std::string> header{"start", "when",    "first step",        "steps done again",
                                        "on",    "version", "arenas, predicted", "process at most",
                                        "ended"};
  page.table(header, rows);
  if (changes.empty()) {
    if (run.starts.size() > 1) page.paragraph("No start reports another deck than the one before.");
  } else {
    page.paragraph("What starts changed in the deck:");
    page.table(std::vector<std::string>{"start", "key", "was", "is"}, changes);
  }
  for (std::size_t i = 0; i < run.starts.size(); ++i) {
    if (i > 0 && run.starts[i].command == run.starts[i - 1].command) continue;
    page.paragraph(fmt::format("Start {}: {}", i + 1, run.starts[i].command), "faint");
  }
}

void logbook_part(Page& page, const RunRecord& run) {
  const auto text = file_of(run, "logbook.md");
  if (!text) return page.paragraph("There is no logbook.md.");
  constexpr std::size_t kMost = 2000;
  std::vector<std::string_view> entries;
  std::string_view rest = *text;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.starts_with("- ")) entries.push_back(line.substr(2));
  }
  const std::size_t left_out = entries.size() > kMost ? entries.size() - kMost : 0;
  if (left_out > 0)
    page.paragraph(fmt::format("The newest {} entries; {} older ones are in {}.", kMost, left_out,
                               (run.directory / "logbook.md").string()));
  page.markup("<div class=\"log\"><ul>\n");
  for (std::size_t i = left_out; i < entries.size(); ++i)
    page.markup("<li>").text(entries[i]).markup("</li>\n");
  page.markup("</ul></div>\n");
}

void memory_part(Page& page, const RunRecord& run, std::vector<std::string>& missing) {
  if (run.starts.empty()) return;
  try {
    const Checked checked = check_other(layout_of(run), {});
    page.preformatted(memory_text(checked));
    const bool same = std::ranges::any_of(checked.figures, [&](const plan::RankFigures& f) {
      return static_cast<double>(f.ledger.device() + f.ledger.host()) ==
             run.starts.back().predicted_bytes;
    });
    if (!same && std::isfinite(run.starts.back().predicted_bytes))
      page.paragraph(fmt::format(
          "The run itself counted {} a rank: it ran on another device, with other threads or with "
          "another version than planned this.",
          bytes_text(run.starts.back().predicted_bytes)));
  } catch (const Error& e) {
    say_missing(page, run, missing, "the memory ledger", e.what());
  }
}

void step_part(Page& page, const RunRecord& run, const std::optional<deck::Machine>& machine,
               std::vector<std::string>& missing) {
  time_table(page, run);
  std::optional<std::filesystem::path> profile;
  if (io::path_exists(run.directory / "profile")) profile = run.directory;
  if (run.starts.empty()) return;
  if (!machine && !profile) {
    return page.paragraph(
        "When each operation ran is known of a run with log.profile = [first, last], and predicted "
        "where --machine gives a machine file.");
  }
  try {
    Planner planner = make_planner(layout_of(run));
    if (machine) settle_traffic(planner, *machine);
    const auto timelines =
        step_times(planner, machine, profile).timelines(planner.inputs, run.name + ", ");
    page.markup("<div class=\"wide step\">").markup(plan::to_svg(timelines)).markup("</div>\n");
  } catch (const Error& e) {
    say_missing(page, run, missing, "the step's timeline", e.what());
  }
}

void deck_part(Page& page, const RunRecord& run) {
  const auto fold = [&](const std::string& name, const char* what) {
    const auto text = file_of(run, name.c_str());
    if (!text) return page.paragraph("There is no " + name + ".");
    page.begin_folded(name + what, false);
    page.preformatted(*text);
    page.end_folded();
  };
  fold("resolved.toml", ", every default filled in");
  for (const auto& path : train::kept_resolved(run.directory))
    fold(path.filename().string(), ", of earlier starts");
}

}  // namespace tessera::verbs
