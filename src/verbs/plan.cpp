// tessera plan: the operations of one step as text or JSON; with a machine file or a profile, when
// each of them runs.
#include <CLI/CLI.hpp>

#include <nlohmann/json.hpp>

#include "core/bytes.hpp"
#include "plan/ir/print.hpp"
#include "plan/prediction/compare.hpp"
#include "verbs/bounds.hpp"
#include "verbs/simulate/simulate.hpp"
#include "verbs/step_times.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

struct PlanOptions {
  LayoutOptions layout;
  std::int64_t rank = 0;
  std::string format = "text", machine, profile;
};

bool is_drawn(const std::string& format) { return format == "svg" || format == "trace"; }

/// The step as a picture: predicted above measured, on one scale of time.
std::string picture(const PlanOptions& o, const Planner& p, const ShownTimes& t) {
  const std::string run = fmt::format("{} on {}, ", p.loaded.deck.run.name,
                                      count_text(p.inputs.layout.mesh.size(), "rank"));
  const auto timelines = t.timelines(p.inputs, run);
  return o.format == "svg" ? to_svg(timelines) : to_trace(timelines);
}

/// Numbers in milliseconds; null where they are not known.
std::string to_json(const std::vector<plan::TimeRow>& rows, const plan::TimedStep* predicted,
                    const train::MeasuredStep& measured) {
  using Json = nlohmann::ordered_json;
  const auto ms = [](const std::optional<double>& s) { return s ? Json(*s * 1e3) : Json(); };
  Json all = {{"step", measured.step},
              {"profiled_steps", measured.of},
              {"ranks", measured.ranks.size()},
              {"clock_error_us", measured.clock_error * 1e6},
              {"predicted_ms", predicted ? Json(length_of(*predicted) * 1e3) : Json()},
              {"measured_ms", length_of(measured.ranks) * 1e3}};
  for (const plan::TimeRow& row : rows) {
    all[std::string(enum_word(row.group))].push_back({{"name", row.name},
                                                      {"ops", row.count},
                                                      {"predicted_ms", ms(row.predicted)},
                                                      {"measured_ms", ms(row.measured)}});
  }
  return all.dump(1);
}

std::string comparison(const PlanOptions& o, const Planner& p, const ShownTimes& t) {
  const auto rows = plan::compare(t.found ? &t.predicted : nullptr, &t.measured->ranks);
  if (o.format == "json") return to_json(rows, t.found ? &t.predicted : nullptr, *t.measured);
  std::string text =
      fmt::format("{} on {}\n{}\n", p.loaded.deck.run.name,
                  count_text(p.inputs.layout.mesh.size(), "rank"), t.measured_title());
  if (t.found) text += t.predicted_title() + "\n";
  return text +
         fmt::format(
             "means of {} measured; measured collectives and messages include the time that a rank "
             "waits for others to come to them\n\n",
             count_text(std::ssize(t.measured->ranks), "rank")) +
         to_text(rows);
}

void check_options(const PlanOptions& o) {
  if (o.rank >= o.layout.ranks)
    throw DeckError(fmt::format("--rank {} of {}", o.rank, count_text(o.layout.ranks, "rank")));
  if (is_drawn(o.format) && o.machine.empty() && o.profile.empty()) {
    throw DeckError(fmt::format(
        "--format {} shows times: give --machine FILE for predicted ones, one of "
        "slurm/machines or what bench machine prints, or --profile RUN_DIR for those of "
        "a run with log.profile, or both",
        o.format));
  }
  if (!is_drawn(o.format) && !o.machine.empty() && o.profile.empty()) {
    throw DeckError(fmt::format(
        "--machine with --format {} is for a comparison: add --profile RUN_DIR", o.format));
  }
}

ExitCode print_plan(const PlanOptions& o) {
  check_options(o);
  Planner p = make_planner(o.layout);
  std::optional<deck::Machine> machine;
  if (!o.machine.empty()) machine = deck::load_machine(o.machine);
  if (machine) settle_traffic(p, *machine);
  if (is_drawn(o.format) || !o.profile.empty()) {
    std::optional<std::filesystem::path> run;
    if (!o.profile.empty()) run = o.profile;
    const ShownTimes t = step_times(p, machine, run);
    fmt::print("{}\n", is_drawn(o.format) ? picture(o, p, t) : comparison(o, p, t));
    return ExitCode::ok;
  }
  const plan::Plan plan =
      plan::make_plan(p.inputs, p.shapes.front(), p.inputs.layout.mesh.place_of(o.rank));
  fmt::print("{}\n", o.format == "json" ? to_json(plan, p.inputs) : to_text(plan, p.inputs));
  return ExitCode::ok;
}

}  // namespace

Verb plan(CLI::App& app) {
  auto* verb = app.add_subcommand(
      "plan", "print or draw the operations of one step, predicted and measured, without MPI");
  auto options = std::make_shared<PlanOptions>();
  options->layout.add_to(*verb);
  auto* rank = verb->add_option("--rank", options->rank, "whose plan is printed")
                   ->check(bounds(std::int64_t{0}));
  verb->add_option("--format", options->format,
                   "text or json; svg or trace: all stages in time, for a browser or "
                   "ui.perfetto.dev")
      ->check(CLI::IsMember({"text", "json", "svg", "trace"}));
  verb->add_option("--machine", options->machine, "machine file whose times are shown");
  verb->add_option(
          "--profile", options->profile,
          "run directory with a profile (log.profile) whose times are shown; text and json "
          "compare them, by activity and operation, with the machine's")
      ->excludes(rank);
  return {.launch = Launch::single,
          .run = [options] { return print_plan(*options); },
          .run_on_ranks = {}};
}

}  // namespace tessera::verbs
