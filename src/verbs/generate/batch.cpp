#include "verbs/generate/batch.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "core/bytes.hpp"
#include "core/clock.hpp"
#include "core/hash.hpp"
#include "core/terminal.hpp"
#include "data/prompts.hpp"
#include "io/finite.hpp"
#include "setup/generation.hpp"
#include "setup/inputs.hpp"
#include "setup/traffic.hpp"
#include "train/generation/engine_decoder.hpp"
#include "verbs/generate/layout.hpp"
#include "verbs/generate/prompts.hpp"
#include "verbs/generate/results.hpp"

namespace tessera::verbs {
namespace {

using nlohmann::ordered_json;

std::string to_text(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

/// Of the first and last values of each parameter, by which models are told apart.
std::uint64_t hash_of_values(const ModelSource& source) {
  constexpr std::int64_t kValues = 1024;
  std::uint64_t hash = 0;
  std::vector<float> values;
  for (const auto& unit : model::model_units(setup::model_config(source.model, source.task))) {
    for (const model::ParamDesc& parameter : unit.params) {
      const std::int64_t n = parameter.elements(), count = std::min(n, kValues);
      values.resize(static_cast<std::size_t>(count));
      for (const std::int64_t first : {std::int64_t{0}, n - count}) {
        source.parameters(parameter, {first, first + count}, values);
        hash = hash_bytes(std::as_bytes(std::span(values)), hash);
      }
    }
  }
  return hash;
}

std::uint64_t hash_of(std::span<const Prompt> prompts) {
  Hasher hash;
  for (const Prompt& prompt : prompts) {
    hash.add(std::string_view(prompt.told)).add(std::ssize(prompt.tokens));
    for (const std::int32_t id : prompt.tokens) hash.add(id);
  }
  return hash.value();
}

/// All that completions depend on.
ordered_json told_of(const GenerateOptions& o, const Speaker& speaker, std::uint64_t model,
                     std::uint64_t prompts) {
  const auto shown = [](std::uint64_t hash) { return fmt::format("{:016x}", hash); };
  return {{"model", shown(model)},
          {"architecture", shown(hash_text(speaker.source.deck))},
          {"tokenizer", shown(hash_text(speaker.tokenizer.json()))},
          {"prompts", shown(prompts)},
          {"chat", o.chat.value_or("")},
          {"type", to_string(o.type)},
          {"tokens", o.tokens},
          {"samples", o.samples},
          {"batch", o.batch},
          {"cache_tokens", o.cache_tokens.value_or(0)},
          {"stop", o.stop},
          {"log_probabilities", o.log_probabilities},
          {"set", o.sets},
          {"backend", o.backend ? enum_word(*o.backend) : "auto"},
          {"temperature", o.rule.temperature},
          {"top_k", o.rule.top_k},
          {"top_p", o.rule.top_p},
          {"min_p", o.rule.min_p},
          {"repetition_penalty", o.rule.repetition_penalty},
          {"seed", o.rule.seed}};
}

/// The numbers of completions, of which a prompt has `samples`, dealt to ranks and collected from
/// them in order. On rank 0.
class Dealer {
 public:
  Dealer(Results& results, std::int64_t total)
      : results_(results), total_(total), next_(results.lines()) {}

  void collect(std::int64_t number, std::string line) {
    waiting_.emplace(number, std::move(line));
    std::string lines;
    std::int64_t count = 0;
    for (auto first = waiting_.begin();
         first != waiting_.end() && first->first == results_.lines() + count; ++count) {
      lines += first->second + "\n";
      first = waiting_.erase(first);
    }
    if (count > 0) results_.append(lines, count);
  }
  /// To data ranks by turns, as long as the next one fits in the room that one of them has; of a
  /// number it is asked how many pages it takes.
  template <typename F>
  std::vector<std::vector<std::int64_t>> deal(std::vector<train::Completions::Room> rooms,
                                              F&& pages_of) {
    std::vector<std::vector<std::int64_t>> dealt(rooms.size());
    for (bool some = true; some;) {
      some = false;
      for (std::size_t rank = 0; rank < rooms.size() && next_ < total_; ++rank) {
        if (!rooms[rank].take(pages_of(next_))) continue;
        dealt[rank].push_back(next_++);
        some = true;
      }
    }
    return dealt;
  }
  bool finished() const { return results_.lines() == total_; }
  std::int64_t done() const { return results_.lines() + std::ssize(waiting_); }

 private:
  Results& results_;
  std::int64_t total_, next_;
  std::map<std::int64_t, std::string> waiting_;  // for those before them
};

/// This rank's part, and on rank 0 what all make. The ranks of one model have the same part, of
/// which the first hands in what was made.
class Batch {
 public:
  Batch(const GenerateOptions& o, const comm::Control& control, std::span<const Prompt> prompts,
        train::EngineDecoder& decoder, const MeshPlace& place, train::Completions& completions,
        Results* results)
      : o_(o),
        control_(control),
        prompts_(prompts),
        decoder_(decoder),
        place_(place),
        completions_(completions) {
    if (results != nullptr) dealer_.emplace(*results, total());
    completions_.done = [this](train::Completion&& made) { keep(std::move(made)); };
  }

  std::int64_t total() const { return std::ssize(prompts_) * o_.samples; }
  std::int64_t tokens() const { return hands_in() ? tokens_ : 0; }

  void run() {
    ProgressLine progress("generate", ProgressLine::Unit::things,
                          Screen::terminal(control_.rank()));
    for (;;) {
      const ordered_json dealt = exchange();
      if (dealer_) progress.at(dealer_->done(), total());
      if (dealt.is_null()) return;
      control_.together([&] { go_on(dealt); });
    }
  }

 private:
  bool hands_in() const { return place_.tensor == 0 && place_.pipeline == 0; }
  std::span<const std::int32_t> prompt_of(std::int64_t number) const {
    return prompts_[static_cast<std::size_t>(number / o_.samples)].tokens;
  }
  /// Passes that the data rank with most of them makes of the prompts that it got.
  std::int64_t most_passes(const ordered_json& dealt) const {
    std::int64_t most = 0;
    for (const ordered_json& numbers : dealt) {
      std::vector<std::int64_t> lengths;
      for (const std::int64_t number : numbers) lengths.push_back(std::ssize(prompt_of(number)));
      most = std::max(most, decoder_.passes_of(lengths));
    }
    return most;
  }
  /// What was dealt begins, and each sequence gets some tokens.
  void go_on(const ordered_json& dealt) {
    std::vector<train::Completions::Prompt> begun;
    for (const std::int64_t number : dealt[static_cast<std::size_t>(place_.data)])
      begun.push_back({.number = static_cast<std::uint64_t>(number), .tokens = prompt_of(number)});
    train::go_on(decoder_, completions_, begun, most_passes(dealt));
  }

  void keep(train::Completion&& made) {
    tokens_ += std::ssize(made.tokens);
    if (!hands_in()) return;
    const auto number = static_cast<std::int64_t>(made.number);
    ordered_json line{{"index", number / o_.samples}};
    if (o_.samples > 1) line["sample"] = number % o_.samples;
    line.update(ordered_json::parse(prompts_[static_cast<std::size_t>(number / o_.samples)].told));
    line["completion"] = made.text;
    line["finish"] = enum_word(made.ending);
    line["tokens"] = made.tokens.size();
    if (o_.log_probabilities) {
      line["token_ids"] = made.tokens;
      line["log_probabilities"] = made.log_p;
    }
    made_.push_back({number, to_text(line)});
  }

  /// Hands in what was made since; returns the numbers that each data rank gets, or null at the
  /// end.
  ordered_json exchange() {
    const auto [slots, pages] = completions_.room();
    const std::string own =
        hands_in()
            ? to_text(
                  {{"data_rank", place_.data}, {"slots", slots}, {"pages", pages}, {"made", made_}})
            : "";
    made_ = ordered_json::array();
    const std::vector<std::string> all = control_.gather(own);
    std::string dealt;
    control_.together([&] {
      if (dealer_) dealt = deal(all);
    });
    return ordered_json::parse(control_.broadcast(dealt));
  }

  std::string deal(std::span<const std::string> all) {
    std::map<std::int64_t, train::Completions::Room> by_rank;
    for (const std::string& text : all) {
      if (text.empty()) continue;
      const auto of_rank = ordered_json::parse(text);
      by_rank[of_rank["data_rank"]] = {.slots = of_rank["slots"], .pages = of_rank["pages"]};
      for (const auto& made : of_rank["made"]) dealer_->collect(made[0], made[1]);
    }
    if (dealer_->finished()) return "null";
    std::vector<train::Completions::Room> rooms;
    for (const auto& [rank, room] : by_rank) rooms.push_back(room);
    return to_text(dealer_->deal(std::move(rooms), [&](std::int64_t number) {
      return completions_.pages_of(std::ssize(prompt_of(number)));
    }));
  }

  const GenerateOptions& o_;
  const comm::Control& control_;
  std::span<const Prompt> prompts_;
  train::EngineDecoder& decoder_;
  MeshPlace place_;
  train::Completions& completions_;
  std::optional<Dealer> dealer_;               // of rank 0
  ordered_json made_ = ordered_json::array();  // [number, line] of each
  std::int64_t tokens_ = 0;
};

train::StopRule stop_rule(const GenerateOptions& o, const Speaker& speaker) {
  train::StopRule stop{
      .most = o.tokens,
      .ends = data::answer_ends(speaker.tokenizer, speaker.chat ? &*speaker.chat : nullptr),
      .texts = o.stop,
      .text_of = {}};
  stop.text_of = [&](std::int32_t id) { return text_of(id, o, speaker); };
  return stop;
}

void report(const GenerateOptions& o, std::int64_t completions, double tokens, double seconds) {
  fmt::print("{}: {}, {} in {:.2f} s ({:.0f} tokens/s)\n", printable(o.out.string()),
             count_text(completions, "completion"),
             count_text(static_cast<std::int64_t>(tokens), "token"), seconds, tokens / seconds);
}

}  // namespace

/// Reads the parameters that a rank keeps.
static void load(const GenerateOptions& o, const ModelSource& source, const comm::Control& control,
                 train::Engine& engine) {
  ProgressLine progress("loading", ProgressLine::Unit::bytes, Screen::terminal(control.rank()));
  std::int64_t done = 0;
  const auto bad = engine.state().set_parameters(
      [&](const model::ParamDesc& parameter, Range range, std::span<float> out) {
        source.parameters(parameter, range, out);
        progress.at(done += static_cast<std::int64_t>(out.size_bytes()), 0);
      });
  if (bad && o.finite) {
    throw io::non_finite_error(fmt::format("{}: {}{}", source.name, bad->parameter, bad->index),
                               bad->value, bad->type, "--allow-non-finite");
  }
}

/// Slots and pages for these prompts. DeckError where --cache-tokens has no room for one of them.
static setup::DecoderSize size_of(const GenerateOptions& o, const deck::Deck& deck,
                                  std::span<const Prompt> prompts) {
  std::int64_t longest = 1;
  std::vector<std::int64_t> most;  // tokens of each
  for (const Prompt& prompt : prompts) {
    most.push_back(train::most_tokens(std::ssize(prompt.tokens), o.tokens, deck.model.context));
    longest = std::max(longest, most.back());
  }
  setup::DecoderSize size = setup::decoder_size(deck, o.batch, longest);
  if (prompts.empty()) return size;
  if (o.cache_tokens && *o.cache_tokens < longest) {
    throw DeckError(fmt::format(
        "--cache-tokens {}: one sequence alone may come to {} tokens (its prompt and --tokens)",
        *o.cache_tokens, longest));
  }
  // Of one prompt's samples no more go on at once than there are slots.
  const std::int64_t at_once = std::min(o.samples, setup::decoder_shapes(size).front().slots);
  std::vector<std::int64_t> sequences;
  for (const std::int64_t tokens : most)
    sequences.insert(sequences.end(), static_cast<std::size_t>(at_once), tokens);
  size.pages = setup::pages_for(std::move(sequences), size, o.cache_tokens);
  return size;
}

ExitCode continue_prompts(const GenerateOptions& o, Speaker& speaker, const train::Job& job) {
  const comm::Control& control = job.control;
  std::vector<Prompt> prompts;
  std::optional<deck::LoadedDeck> loaded;
  std::optional<setup::DecoderSize> size;
  std::optional<Results> results;
  control.together([&] {
    if (control.rank() == 0) Results::check_new(o.out);
    loaded = generation_deck(o, speaker.source, control.size());
    setup::check_traffic(*loaded, job.mpi.node_of());
    prompts = read_prompts(o, speaker, speaker.source.model.context);
    size = size_of(o, loaded->deck, prompts);
  });
  const auto shapes = setup::generation_shapes(loaded->deck, *size);
  std::optional<train::Engine> made;
  try {
    made.emplace(*loaded, job, shapes, train::Hardware(loaded->deck, job, true));
  } catch (Error& e) {
    if (e.exit_code() == ExitCode::memory) {
      e.add_context(
          "a smaller --batch, fewer --cache-tokens or --tokens, --type bf16, and --set "
          "zero.stage=3, parallel.tensor, offload.parameters, offload.cache or frozen.type need "
          "less");
    }
    throw;
  }
  train::Engine& engine = *made;
  engine.tune(deck::run_directory(loaded->deck), false, [](const std::string&) {});
  control.together([&] { load(o, speaker.source, control, engine); });
  control.together([&] {
    if (control.rank() != 0) return;
    results.emplace(o.out, told_of(o, speaker, hash_of_values(speaker.source), hash_of(prompts)),
                    std::ssize(prompts) * o.samples);
    if (results->lines() == 0) return;
    tell(fmt::format("going on after {} of {}\n", results->lines(),
                     count_text(std::ssize(prompts) * o.samples, "completion")));
  });
  const std::int64_t before = results ? results->lines() : 0;
  train::EngineDecoder decoder(engine, job, *size);
  train::Completions completions(decoder, o.rule, stop_rule(o, speaker), o.log_probabilities);
  decoder.renew();
  Batch batch(o, control, prompts, decoder, engine.place(), completions,
              results ? &*results : nullptr);
  const auto begin = SteadyClock::now();
  batch.run();
  const double tokens = control.sum(static_cast<double>(batch.tokens()));
  control.together([&] {
    if (!results) return;
    results->finish();
    report(o, batch.total() - before, tokens, seconds_since(begin));
  });
  return ExitCode::ok;
}

}  // namespace tessera::verbs
