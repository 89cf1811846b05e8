// tessera evaluate: the loss over validation data, or answers to questions of multiple choice, of a
// deck, a run or a checkpoint.
#include <CLI/CLI.hpp>

#include "train/adapter_evaluation.hpp"
#include "train/choices.hpp"
#include "train/evaluation.hpp"
#include "train/reference.hpp"
#include "verbs/load.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {

/// DeckError for what has no effect beside --adapters.
static void check_adapters_alone(const DeckOnRanks& deck, const std::string& weights,
                                 bool reference) {
  if (deck.checkpoint) {
    throw DeckError(
        "--adapters are beside the model that a run begins with: give the deck, not a run or "
        "checkpoint");
  }
  if (weights == train::ChoicesOptions{}.weights && !reference) return;
  throw DeckError(fmt::format("--{} has no effect with --adapters: leave it out",
                              reference ? "reference" : "ema"));
}

struct EvaluateOptions : DeckOptions {
  train::ChoicesOptions choices;
  bool reference = false;
  std::vector<std::string> adapters;
};

static void evaluate_on_ranks(const EvaluateOptions& o, const train::Job& job) {
  const auto deck = load_on_all(job.control, o, Layout::fitted);
  if (!o.adapters.empty()) {
    job.control.together([&] { check_adapters_alone(deck, o.choices.weights, o.reference); });
    train::evaluate_adapters(deck.loaded, job, o.adapters);
  } else if (o.reference) {
    job.control.together([&] {
      if (o.choices.weights != train::ChoicesOptions{}.weights) {
        throw DeckError(
            "--ema takes weights of a run, but --reference is of model.init_from: leave "
            "one out");
      }
      if (deck.checkpoint) {
        throw DeckError(
            "--reference is of the model that a run begins with: give the deck, not a "
            "run or checkpoint");
      }
    });
    train::write_reference(deck.loaded, job);
  } else if (o.choices.questions.empty()) {
    train::evaluate_deck(deck.loaded, job, o.choices.weights);
  } else {
    train::answer_choices(deck.loaded, job, o.choices);
  }
}

Verb evaluate(CLI::App& app) {
  auto* verb = app.add_subcommand(
      "evaluate",
      "loss, perplexity and bits a byte over a deck's validation data, from its newest checkpoint, "
      "or accuracy in questions of multiple choice; changes nothing in the run directory");
  auto options = std::make_shared<EvaluateOptions>();
  train::ChoicesOptions& choices = options->choices;
  options->add_to(*verb, "input deck (TOML), run directory or checkpoint");
  auto* questions = verb->add_option(
      "--choices", choices.questions,
      "questions in place of validation data: JSON lines {\"context\": \"...\", \"choices\": "
      "[\"...\", \"...\"], \"answer\": 0}; choices follow the context as they are written");
  verb->add_flag("--reference", options->reference,
                 "of a deck with task.kind dpo or ipo, before it is trained: write what "
                 "model.init_from says of all its documents into the file task.reference")
      ->excludes(questions);
  verb->add_option("--tokenizer", choices.tokenizer,
                   "of questions: \"bytes\" or a tokenizer.json; default: the model's")
      ->needs(questions);
  verb->add_flag_callback(
          "--special-tokens",
          [options] { options->choices.begin = data::ContextBegin::special_tokens; },
          "a context begins with what the tokenizer's post-processor puts before a text")
      ->needs(questions);
  verb->add_option("--out", choices.out,
                   "a file for a JSON line a question: log_likelihoods of its choices")
      ->needs(questions);
  verb->add_option("--adapters", options->adapters,
                   "directories of adapters (PEFT) of model.init_from: evaluates this model, and "
                   "with each of them beside it")
      ->excludes(questions);
  add_allow_non_finite(*verb,
                       [options] { options->sets.emplace_back("model.accept_non_finite=true"); });
  add_ema(*verb, choices.weights);
  return {.launch = Launch::ranks, .run = {}, .run_on_ranks = [options](const train::Job& job) {
            evaluate_on_ranks(*options, job);
            return ExitCode::ok;
          }};
}

}  // namespace tessera::verbs
