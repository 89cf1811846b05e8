#include <CLI/CLI.hpp>

#include "train/evaluation.hpp"
#include "verbs/load.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {

Verb evaluate(CLI::App& app) {
  auto* verb = app.add_subcommand("evaluate",
                                  "loss over a deck's validation data, from its newest checkpoint; "
                                  "changes nothing in the run directory");
  auto options = std::make_shared<DeckOptions>();
  options->add_to(*verb);
  return {.launch = Launch::ranks,
          .run = {},
          .run_on_ranks = [options](const auto& mpi, const auto& control) {
            const auto loaded = load_on_all(control, *options);
            train::evaluate_deck(loaded, mpi, control);
            return ExitCode::ok;
          }};
}

}  // namespace tessera::verbs
