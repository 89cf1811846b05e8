#include "plan/print.hpp"

#include <CLI/CLI.hpp>

#include "verbs/planner.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {

Verb plan(CLI::App& app) {
  auto* verb = app.add_subcommand("plan", "print the operations of one step, without MPI");
  auto layout = std::make_shared<LayoutOptions>();
  auto rank = std::make_shared<std::int64_t>(0);
  auto format = std::make_shared<std::string>("text");
  layout->add_to(*verb);
  verb->add_option("--rank", *rank, "whose plan")->check(CLI::NonNegativeNumber);
  verb->add_option("--format", *format, "text or json")->check(CLI::IsMember({"text", "json"}));
  return {.launch = Launch::single,
          .run =
              [layout, rank, format] {
                if (*rank >= layout->ranks)
                  throw DeckError(fmt::format("--rank {} of {} ranks", *rank, layout->ranks));
                const Planner p = make_planner(*layout);
                const plan::Plan plan =
                    plan::make_plan(p.inputs, p.shapes.front(), p.inputs.mesh.place_of(*rank));
                fmt::print("{}\n",
                           *format == "json" ? to_json(plan, p.inputs) : to_text(plan, p.inputs));
                return ExitCode::ok;
              },
          .run_on_ranks = {}};
}

}  // namespace tessera::verbs
