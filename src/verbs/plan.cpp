#include <CLI/CLI.hpp>

#include "plan/print.hpp"
#include "plan/timeline.hpp"
#include "verbs/planner.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

struct PlanOptions {
  LayoutOptions layout;
  std::int64_t rank = 0;
  std::string format = "text", machine;
};

/// The step as a picture, with the times that the machine would take.
std::string picture(const PlanOptions& o, const Planner& p) {
  const deck::Machine machine = deck::load_machine(o.machine);
  const plan::Prediction found =
      plan::predict(plan::simulated_plans(p.inputs, p.shapes.front()), p.inputs, machine);
  const plan::Timeline timeline =
      timeline_of(found, p.inputs,
                  fmt::format("{} on {} ranks of {}, predicted: {:.1f} ms, bubble {:.1f}%",
                              p.loaded.deck.run.name, o.layout.ranks, machine.name,
                              found.simulation.step * 1e3, 100 * found.bubble));
  const std::span<const plan::Timeline> all(&timeline, 1);
  return o.format == "svg" ? to_svg(all) : to_trace(all);
}

ExitCode print_plan(const PlanOptions& o) {
  if (o.rank >= o.layout.ranks)
    throw DeckError(fmt::format("--rank {} of {} ranks", o.rank, o.layout.ranks));
  const bool drawn = o.format == "svg" || o.format == "trace";
  if (drawn == o.machine.empty()) {
    throw DeckError(
        drawn ? fmt::format("--format {} shows predicted times: give --machine FILE, one of "
                            "slurm/machines or what bench machine prints",
                            o.format)
              : fmt::format("--machine is for --format svg or trace, not {}", o.format));
  }
  const Planner p = make_planner(o.layout);
  if (drawn) {
    fmt::print("{}\n", picture(o, p));
    return ExitCode::ok;
  }
  const plan::Plan plan =
      plan::make_plan(p.inputs, p.shapes.front(), p.inputs.mesh.place_of(o.rank));
  fmt::print("{}\n", o.format == "json" ? to_json(plan, p.inputs) : to_text(plan, p.inputs));
  return ExitCode::ok;
}

}  // namespace

Verb plan(CLI::App& app) {
  auto* verb = app.add_subcommand("plan", "print or draw the operations of one step, without MPI");
  auto options = std::make_shared<PlanOptions>();
  options->layout.add_to(*verb);
  verb->add_option("--rank", options->rank, "whose plan is printed")->check(CLI::NonNegativeNumber);
  verb->add_option("--format", options->format,
                   "text or json; svg or trace: all stages in time, for a browser or "
                   "ui.perfetto.dev")
      ->check(CLI::IsMember({"text", "json", "svg", "trace"}));
  verb->add_option("--machine", options->machine, "machine file whose times svg and trace show");
  return {.launch = Launch::single,
          .run = [options] { return print_plan(*options); },
          .run_on_ranks = {}};
}

}  // namespace tessera::verbs
