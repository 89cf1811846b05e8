// tessera evaluate: the loss over validation data, of a deck, a run or a checkpoint.
#include <CLI/CLI.hpp>

#include "train/evaluation.hpp"
#include "verbs/load.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {

Verb evaluate(CLI::App& app) {
  auto* verb = app.add_subcommand("evaluate",
                                  "loss over a deck's validation data, from its newest checkpoint; "
                                  "changes nothing in the run directory");
  struct EvaluateOptions : DeckOptions {
    std::string weights;
  };
  auto options = std::make_shared<EvaluateOptions>();
  options->add_to(*verb, "input deck (TOML), run directory or checkpoint");
  add_allow_non_finite(*verb,
                       [options] { options->sets.emplace_back("model.accept_non_finite=true"); });
  add_ema(*verb, options->weights);
  return {.launch = Launch::ranks, .run = {}, .run_on_ranks = [options](const train::Job& job) {
            const auto deck = load_on_all(job.control, *options, Layout::fitted);
            train::evaluate_deck(deck.loaded, job, options->weights);
            return ExitCode::ok;
          }};
}

}  // namespace tessera::verbs
