// tessera generate: continues a text with a trained model.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>

#include "backend/backend.hpp"
#include "comm/launcher.hpp"
#include "core/bytes.hpp"
#include "core/cores.hpp"
#include "core/terminal.hpp"
#include "io/tokenizer_files.hpp"
#include "io/tokenizer_json.hpp"
#include "setup/inputs.hpp"
#include "setup/threads.hpp"
#include "train/generator.hpp"
#include "verbs/bounds.hpp"
#include "verbs/model_source.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

struct GenerateOptions {
  std::filesystem::path model;
  std::string prompt, tokenizer;
  bool accept_tokenizer = false;
  bool special_tokens = true;  // before the prompt, where the tokenizer's post-processor has some
  std::int64_t tokens = 200;
  train::SamplingRule rule;
  std::optional<deck::Backend> backend;
  bool finite = true;  // the weights must be
  std::string weights;
};

/// The text of a token that the model drew. DataError where --tokenizer knows no such token, of a
/// model that has no tokenizer of its own to compare with.
std::string_view text_of(std::int32_t id, const GenerateOptions& o, const ModelSource& source,
                         const io::Tokenizer& tokenizer) {
  const std::string_view text = tokenizer.decode(id);
  if (!text.empty() || source.tokenizer || o.tokenizer.empty() || o.accept_tokenizer) return text;
  throw DataError(fmt::format(
      "{} chose token {} of its {}, which --tokenizer {} does not have ({} tokens): it is not the "
      "tokenizer that the model was trained with. Give that one, or add --accept-tokenizer to "
      "leave out such tokens",
      source.name, id, source.model.vocab, o.tokenizer, tokenizer.vocab()));
}

/// The prompt in tokens. Those that the post-processor puts before a text are not put there again
/// where the prompt spells them.
std::vector<std::int32_t> encode_prompt(const GenerateOptions& o, io::Tokenizer& tokenizer) {
  std::vector<std::int32_t> tokens = tokenizer.encode(o.prompt);
  const auto& before = tokenizer.frame().before;
  const bool spelled = std::ranges::mismatch(before, tokens).in1 == before.end();
  if (o.special_tokens && !spelled) tokens.insert(tokens.begin(), before.begin(), before.end());
  return tokens;
}

/// Prints what follows the prompt's `tokens`, token by token.
void continue_text(const GenerateOptions& o, const ModelSource& source,
                   const io::Tokenizer& tokenizer, train::Generator& generator,
                   std::vector<std::int32_t> tokens) {
  const auto left = [&] { return generator.context() - generator.length(); };
  std::int64_t added = 0;
  bool ended = false;
  while (added < o.tokens && static_cast<std::int64_t>(tokens.size()) <= left()) {
    const std::int32_t id = train::sample_token(generator.advance(tokens), o.rule, added);
    if (tokenizer.end_of_text() == id) {
      ended = true;
      break;
    }
    fmt::print("{}", text_of(id, o, source, tokenizer));
    std::fflush(stdout);
    tokens.assign(1, id);
    ++added;
  }
  fmt::print("\n");
  if (ended || added == o.tokens) return;
  std::fflush(stdout);
  tell(
      fmt::format("tessera: stopped after {} of --tokens {}: with the prompt they fill the "
                  "model's context of {}\n",
                  added, o.tokens, count_text(generator.context(), "token")));
}

ExitCode run(const GenerateOptions& o) {
  comm::refuse_copies(comm::launch_of_process(), "but one alone continues a text",
                      "start it once, as in srun --ntasks=1");
  const ModelSource source =
      open_model(o.model, o.finite ? std::optional(DType::f32) : std::nullopt, o.weights);
  if (deck::has_own_head(source.task.kind)) {
    throw DeckError(fmt::format("{}: it {}: tessera classify asks it", source.name,
                                deck::has_classes(source.task.kind)
                                    ? "says which class a document or word is of"
                                    : "says how good an answer is"));
  }
  if (source.model.attention != AttentionMask::causal) {
    throw DeckError(fmt::format(
        "{}: its attention is {}: it was trained to fill in masked tokens, not to continue a text",
        source.name, enum_word(source.model.attention)));
  }
  io::Tokenizer tokenizer = choose_tokenizer(source, o.tokenizer, o.accept_tokenizer);
  const int threads = setup::thread_count({}, cores_each(std::array{own_cores()}));
  setup::use_threads(threads);
  const auto backend = backend::make_backend(
      {.kind = o.backend.value_or(deck::Backend::automatic), .threads = threads}, nullptr);
  std::optional<ProgressLine> progress(std::in_place, "loading", ProgressLine::Unit::bytes);
  train::Generator generator(setup::model_config(source.model, source.task), *backend.device,
                             *backend.device_tier, tell_progress(source, *progress));
  progress.reset();

  std::vector<std::int32_t> tokens = encode_prompt(o, tokenizer);
  if (tokens.empty())
    throw DeckError("--prompt is empty: give at least one character to go on from");
  if (static_cast<std::int64_t>(tokens.size()) > generator.context()) {
    throw DeckError(fmt::format("--prompt has {}, more than the model's context of {}: shorten it",
                                count_text(std::ssize(tokens), "token"), generator.context()));
  }
  fmt::print("{}", o.prompt);
  continue_text(o, source, tokenizer, generator, std::move(tokens));
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
      ->check(bounds(std::int64_t{1}));
  verb->add_option("--tokenizer", o->tokenizer,
                   "\"bytes\" or a tokenizer.json; default: the model's");
  verb->add_flag("--accept-tokenizer", o->accept_tokenizer,
                 "take a --tokenizer that is not the one which the model was trained with");
  verb->add_flag_callback(
      "--no-special-tokens", [o] { o->special_tokens = false; },
      "leave out what the tokenizer's post-processor puts before a text, as of models whose "
      "documents were made without");
  verb->add_option("--temperature", o->rule.temperature, "0: always the likeliest")
      ->capture_default_str()
      ->check(bounds(0.0));
  verb->add_option("--top-k", o->rule.top_k, "only the k likeliest tokens; 0: all")
      ->capture_default_str()
      ->check(bounds(std::int64_t{0}));
  verb->add_option("--top-p", o->rule.top_p,
                   "only the likeliest tokens that make up this probability")
      ->capture_default_str()
      ->check(bounds(0.0, std::optional(1.0)));
  verb->add_option("--seed", o->rule.seed, "of the draws")->capture_default_str();
  add_allow_non_finite(*verb, [o] { o->finite = false; });
  add_ema(*verb, o->weights);
  add_backend(*verb, o->backend, "where it runs, as run.backend (auto)");
  return {.launch = Launch::single, .run = [o] { return run(*o); }, .run_on_ranks = {}};
}

}  // namespace tessera::verbs
