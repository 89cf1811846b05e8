// tessera generate: continues texts with a trained model.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>

#include "comm/launcher.hpp"
#include "core/bytes.hpp"
#include "core/cores.hpp"
#include "core/terminal.hpp"
#include "data/prompts.hpp"
#include "io/tokenizer_files.hpp"
#include "io/tokenizer_json.hpp"
#include "setup/generation.hpp"
#include "setup/inputs.hpp"
#include "setup/threads.hpp"
#include "train/generation/completions.hpp"
#include "train/generation/generator.hpp"
#include "verbs/bounds.hpp"
#include "verbs/generate/batch.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {

std::string_view text_of(std::int32_t id, const GenerateOptions& o, const Speaker& speaker) {
  const std::string_view text = speaker.tokenizer.decode(id);
  if (!text.empty() || speaker.source.tokenizer || o.tokenizer.empty() || o.accept_tokenizer)
    return text;
  throw DataError(fmt::format(
      "{} chose token {} of its {}, which --tokenizer {} does not have ({} tokens): it is not the "
      "tokenizer that the model was trained with. Give that one, or add --accept-tokenizer to "
      "leave out such tokens",
      speaker.source.name, id, speaker.source.model.vocab, o.tokenizer, speaker.tokenizer.vocab()));
}

/// The model in memory, with room for a sequence of `most` tokens. MemoryError where the host's
/// memory, if it is to be there, has not enough left.
static train::Generator make_generator(const GenerateOptions& o, const Speaker& speaker,
                                       const backend::Backend& backend, std::int64_t most) {
  const model::ModelConfig config = setup::model_config(speaker.source.model, speaker.source.task);
  const train::GeneratorOptions options{
      .type = o.type, .most = most, .most_head_dim = backend::most_head_dim(backend.kind)};
  memory::Tier& tier = *backend.device_tier;
  const auto [model, cache] = train::generator_bytes(config, options);
  const std::int64_t free = memory::available_bytes();
  if (tier.of_host() && model + cache > free) {
    throw MemoryError(fmt::format(
        "{} are needed for the model and {} for keys and values of {}, but this node has {} left: "
        "use fewer --tokens, --type bf16 or f16, or a file of --prompts, for which ranks can "
        "divide "
        "the model, or have it on disks",
        human_bytes(model), human_bytes(cache), count_text(most, "token"), human_bytes(free)));
  }
  ProgressLine progress("loading", ProgressLine::Unit::bytes);
  return {config, *backend.device, tier, tell_progress(speaker.source, progress), options};
}

namespace {

/// Prints what follows the prompt's `tokens`, token by token.
void continue_text(const GenerateOptions& o, const Speaker& speaker, train::Generator& generator,
                   std::vector<std::int32_t> tokens) {
  std::vector<std::int32_t> seen;
  const auto left = [&] { return generator.context() - generator.length(); };
  std::int64_t added = 0;
  bool ended = false;
  while (added < o.tokens && std::ssize(tokens) <= left()) {
    seen.insert(seen.end(), tokens.begin(), tokens.end());
    const std::span<const float> logits = generator.advance(tokens);
    const std::int32_t id = train::sample_token(logits, o.rule, {.position = added}, seen);
    if (speaker.tokenizer.end_of_text() == id) {
      ended = true;
      break;
    }
    fmt::print("{}", text_of(id, o, speaker));
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

void check_prompts(const GenerateOptions& o) {
  if (!io::is_json_lines(o.prompts)) {
    throw DeckError(fmt::format("--prompts {}: it is a file of JSON lines, .jsonl or .jsonl.gz",
                                printable(o.prompts.string())));
  }
  if (std::ranges::count(o.stop, "") > 0)
    throw DeckError("--stop \"\": give the text at which a completion ends");
}

/// The template of --chat, once the tokenizer is known.
std::optional<io::ChatTemplate> open_chat(const GenerateOptions& o, const ModelSource& source,
                                          const io::Tokenizer& tokenizer) {
  if (!o.chat) return std::nullopt;
  const std::string own = source.tokenizer ? source.tokenizer->string() : "";
  const bool recognise = *o.chat == io::kRecognisedTemplate;
  io::ChatTemplate chat = io::ChatTemplate::open(
      recognise ? io::recognised_template(o.tokenizer.empty() ? own : o.tokenizer, "--chat")
                : *o.chat);
  bind_template(chat, *o.chat, o.field, tokenizer);
  return chat;
}

Speaker open_speaker(const GenerateOptions& o) {
  ModelSource source =
      open_model(o.model, o.finite ? std::optional(DType::f32) : std::nullopt, o.weights);
  setup::check_continues(source.model, source.task, source.name);
  io::Tokenizer tokenizer = choose_tokenizer(source, o.tokenizer, o.accept_tokenizer);
  auto chat = open_chat(o, source, tokenizer);
  return {std::move(source), std::move(tokenizer), std::move(chat)};
}

/// --prompt: as one process, on the terminal.
ExitCode run(const GenerateOptions& o) {
  if (!o.prompt) throw DeckError("give --prompt TEXT, or --prompts FILE and --out FILE");
  comm::refuse_copies(comm::launch_of_process(), "but one alone continues a --prompt",
                      "start it once, as in srun --ntasks=1, or give a file of --prompts, which "
                      "all of them continue");
  Speaker speaker = open_speaker(o);
  std::vector<std::int32_t> tokens =
      data::encode_prompt(*o.prompt, o.special_tokens, speaker.tokenizer);
  if (tokens.empty())
    throw DeckError("--prompt is empty: give at least one character to go on from");
  const std::int64_t context = speaker.source.model.context;
  if (std::ssize(tokens) > context) {
    throw DeckError(fmt::format("--prompt has {}, more than the model's context of {}: shorten it",
                                count_text(std::ssize(tokens), "token"), context));
  }
  const int threads = setup::thread_count({}, cores_each(std::array{own_cores()}));
  setup::use_threads(threads);
  const auto backend = backend::make_backend(
      {.kind = o.backend.value_or(deck::Backend::automatic), .threads = threads, .few_rows = true},
      nullptr);
  train::Generator generator = make_generator(
      o, speaker, backend, train::most_tokens(std::ssize(tokens), o.tokens, context));
  fmt::print("{}", *o.prompt);
  continue_text(o, speaker, generator, std::move(tokens));
  return ExitCode::ok;
}

/// --prompts.
ExitCode run_on_ranks(const GenerateOptions& o, const train::Job& job) {
  std::optional<Speaker> speaker;
  job.control.together([&] {
    check_prompts(o);
    speaker.emplace(open_speaker(o));
  });
  return continue_prompts(o, *speaker, job);
}

void add_sampling(CLI::App& verb, train::SamplingRule& rule) {
  verb.add_option("--temperature", rule.temperature, "0: always the likeliest")
      ->capture_default_str()
      ->check(bounds(0.0));
  verb.add_option("--top-k", rule.top_k, "only the k likeliest tokens; 0: all")
      ->capture_default_str()
      ->check(bounds(std::int64_t{0}));
  verb.add_option("--top-p", rule.top_p, "only the likeliest tokens that make up this probability")
      ->capture_default_str()
      ->check(bounds(0.0, std::optional(1.0)));
  verb.add_option("--min-p", rule.min_p,
                  "only tokens at least so likely, times the likeliest; 0: all")
      ->capture_default_str()
      ->check(bounds(0.0, std::optional(1.0)));
  verb.add_option("--repetition-penalty", rule.repetition_penalty,
                  "above 1 makes tokens that were there before less likely, the prompt's too")
      ->capture_default_str()
      ->check(bounds(0.01));
  verb.add_option("--seed", rule.seed, "of the draws")->capture_default_str();
}

void add_files(CLI::App& verb, GenerateOptions& o) {
  auto* prompt = verb.add_option("--prompt", o.prompt, "text to continue on the terminal");
  auto* prompts =
      verb.add_option("--prompts", o.prompts,
                      "a .jsonl file of prompts, each a line's \"prompt\"; all ranks continue "
                      "them, several at once")
          ->excludes(prompt);
  auto* out = verb.add_option(
      "--out", o.out,
      "of --prompts: file for a JSON line a completion, in their order, which appears when all "
      "are made; begun again after a kill, the same command goes on");
  prompts->needs(out), out->needs(prompts);
  const auto add = [&](const char* name, auto& value, const char* what) {
    return verb.add_option(name, value, what)->needs(prompts);
  };
  add("--field", o.field, "of --prompts: the member that is the prompt, if not \"prompt\"");
  add("--chat", o.chat,
      "of --prompts: each line is a conversation (messages), or a prompt that the user says, and "
      "this template makes of it what the model answers, as tokenize --chat does; auto: the "
      "model's own");
  add("--samples", o.samples, "of --prompts: completions of each")
      ->capture_default_str()
      ->check(bounds(std::int64_t{1}, std::optional(std::int64_t{1'000'000})));
  add("--batch", o.batch, "of --prompts: sequences that a data rank goes on with at once")
      ->capture_default_str()
      ->check(bounds(std::int64_t{1}, std::optional(setup::kMostSequences)));
  add("--cache-tokens", o.cache_tokens,
      "of --prompts: tokens of all these sequences together that a data rank has room for; a "
      "prompt for which, with --tokens more, there is none waits; not given: none ever waits")
      ->check(bounds(std::int64_t{1}, std::optional(std::int64_t{1} << 40)));
  add("--stop", o.stop, "of --prompts: a text at which a completion ends; may be given again")
      ->allow_extra_args(false);
  add("--set", o.sets,
      "of --prompts: a deck's key of layout or memory, as zero.stage=3, parallel.tensor=2, "
      "offload.parameters=\"nvme\" or frozen.type=\"nf4\"; may be given again")
      ->allow_extra_args(false);
  verb.add_flag("--log-probabilities", o.log_probabilities,
                "of --prompts: also the ids of tokens, and log p of each under the model")
      ->needs(prompts);
}

}  // namespace

Verb generate(CLI::App& app) {
  auto* verb = app.add_subcommand("generate", "continue texts with a trained model");
  auto o = std::make_shared<GenerateOptions>();
  verb->add_option("MODEL", o->model, "checkpoint, run directory or Hugging Face directory")
      ->required();
  add_files(*verb, *o);
  verb->add_option("--tokens", o->tokens, "how many tokens to add at most")
      ->capture_default_str()
      ->check(bounds(std::int64_t{1}, std::optional(std::int64_t{1'000'000'000})));
  verb->add_option("--tokenizer", o->tokenizer,
                   "\"bytes\" or a tokenizer.json; default: the model's");
  verb->add_flag("--accept-tokenizer", o->accept_tokenizer,
                 "take a --tokenizer that is not the one which the model was trained with");
  verb->add_flag_callback(
      "--no-special-tokens", [o] { o->special_tokens = false; },
      "leave out what the tokenizer's post-processor puts before a text, as of models whose "
      "documents were made without");
  add_sampling(*verb, o->rule);
  add_type(*verb, o->type, "of weights and of what is computed");
  add_allow_non_finite(*verb, [o] { o->finite = false; });
  add_ema(*verb, o->weights);
  add_backend(*verb, o->backend, "where it runs, as run.backend (auto)");
  return {.launch = Launch::ranks,
          .run = [o] { return run(*o); },
          .run_on_ranks = [o](const train::Job& job) { return run_on_ranks(*o, job); },
          .alone = [o] { return o->prompts.empty(); }};
}

}  // namespace tessera::verbs
