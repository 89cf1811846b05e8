// tessera generate: continues a text with a trained model.
#include <CLI/CLI.hpp>

#include <cstdio>

#include "backend/backend.hpp"
#include "comm/launcher.hpp"
#include "core/cores.hpp"
#include "io/tokenizer_files.hpp"
#include "setup/inputs.hpp"
#include "setup/threads.hpp"
#include "train/generator.hpp"
#include "verbs/model_source.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

struct GenerateOptions {
  std::filesystem::path model;
  std::string prompt, tokenizer;
  bool accept_tokenizer = false;
  std::int64_t tokens = 200;
  train::SamplingRule rule;
  std::optional<deck::Backend> backend;
  bool finite = true;  // the weights must be
};

io::Tokenizer choose_tokenizer(const GenerateOptions& o, const ModelSource& source) {
  std::optional<io::Tokenizer> own;
  if (source.tokenizer) own = io::open_kept_tokenizer(*source.tokenizer);
  if (o.tokenizer.empty()) {
    if (own) return *std::move(own);
    if (source.model.vocab == 256) return io::Tokenizer::bytes();
    throw DeckError(
        fmt::format("{} says nothing of its tokenizer: give --tokenizer bytes or a tokenizer.json",
                    source.name));
  }
  io::Tokenizer given =
      o.tokenizer == "bytes" ? io::Tokenizer::bytes() : io::open_kept_tokenizer(o.tokenizer);
  if (!own || o.accept_tokenizer) return given;
  if (const std::string difference = own->difference(given); !difference.empty()) {
    throw DataError(
        fmt::format("{} was trained with {} ({} tokens), not with --tokenizer {} ({} tokens): {}. "
                    "Leave it out, "
                    "or add --accept-tokenizer",
                    source.name, source.tokenizer->string(), own->vocab(), o.tokenizer,
                    given.vocab(), difference));
  }
  return given;
}

ExitCode run(const GenerateOptions& o) {
  comm::refuse_copies(comm::launch_of_process(), "but one alone continues a text",
                      "start it once, as in srun --ntasks=1");
  const ModelSource source =
      open_model(o.model, o.finite ? std::optional(DType::f32) : std::nullopt);
  io::Tokenizer tokenizer = choose_tokenizer(o, source);
  check_tokenizer(tokenizer, source);
  const int threads = setup::thread_count({}, cores_each(std::array{own_cores()}));
  setup::use_threads(threads);
  const auto backend = backend::make_backend(
      {.kind = o.backend.value_or(deck::Backend::automatic), .threads = threads}, nullptr);
  std::optional<ProgressLine> progress(std::in_place, "loading", ProgressLine::Unit::bytes);
  train::Generator generator(setup::model_config(source.model), *backend.device,
                             *backend.device_tier, tell_progress(source, *progress));
  progress.reset();

  std::vector<std::int32_t> tokens = tokenizer.encode(o.prompt);
  if (tokens.empty())
    throw DeckError("--prompt is empty: give at least one character to go on from");
  if (static_cast<std::int64_t>(tokens.size()) > generator.context()) {
    throw DeckError(fmt::format("--prompt has {} tokens, the model's context {}", tokens.size(),
                                generator.context()));
  }
  fmt::print("{}", o.prompt);
  std::span<const std::int32_t> next(tokens);
  for (std::int64_t i = 0;
       i < o.tokens &&
       generator.length() + static_cast<std::int64_t>(next.size()) <= generator.context();
       ++i) {
    const std::int32_t id = train::sample_token(generator.advance(next), o.rule, i);
    if (tokenizer.end_of_text() == id) break;
    const std::string_view piece = tokenizer.decode(id);
    fmt::print("{}", piece);
    std::fflush(stdout);
    tokens.assign(1, id);
    next = tokens;
  }
  fmt::print("\n");
  return ExitCode::ok;
}

}  // namespace

Verb generate(CLI::App& app) {
  auto* verb = app.add_subcommand("generate", "continue a text with a trained model");
  auto o = std::make_shared<GenerateOptions>();
  verb->add_option("MODEL", o->model, "checkpoint, run directory or Hugging Face directory")
      ->required();
  verb->add_option("--prompt", o->prompt, "text to continue")->required();
  verb->add_option("--tokens", o->tokens, "how many tokens to add at most")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verb->add_option("--tokenizer", o->tokenizer,
                   "\"bytes\" or a tokenizer.json; default: the model's");
  verb->add_flag("--accept-tokenizer", o->accept_tokenizer,
                 "take a --tokenizer that is not the one which the model was trained with");
  verb->add_option("--temperature", o->rule.temperature, "0: always the likeliest")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--top-k", o->rule.top_k, "only the k likeliest tokens; 0: all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--top-p", o->rule.top_p,
                   "only the likeliest tokens that make up this probability")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  verb->add_option("--seed", o->rule.seed, "of the draws")->capture_default_str();
  add_allow_non_finite(*verb, [o] { o->finite = false; });
  add_backend(*verb, o->backend, "where it runs, as run.backend (auto)");
  return {.launch = Launch::single, .run = [o] { return run(*o); }, .run_on_ranks = {}};
}

}  // namespace tessera::verbs
