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
#include "verbs/generate/prompts.hpp"
#include "verbs/generate/results.hpp"

namespace tessera::verbs {
namespace {

using nlohmann::ordered_json;

/// Tokens that each sequence gets between two agreements of the ranks.
constexpr int kSteps = 16;

std::string to_text(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

/// The source, whose values join a hash as they are read.
train::ParameterSource hashed(const train::ParameterSource& source, std::uint64_t& hash) {
  return [=, &hash](const model::ParamDesc& parameter, Range range, std::span<float> out) {
    source(parameter, range, out);
    hash = hash_bytes(std::as_bytes(out), hash);
  };
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
          {"stop", o.stop},
          {"log_probabilities", o.log_probabilities},
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
  /// To ranks with so many free slots, by turns; empty where nothing is left.
  std::vector<std::vector<std::int64_t>> deal(std::vector<std::int64_t> free) {
    std::vector<std::vector<std::int64_t>> dealt(free.size());
    for (bool some = true; some;) {
      some = false;
      for (std::size_t rank = 0; rank < free.size() && next_ < total_; ++rank) {
        if (free[rank]-- <= 0) continue;
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

/// This rank's part, and on rank 0 what all make.
class Batch {
 public:
  Batch(const GenerateOptions& o, const comm::Control& control, std::span<const Prompt> prompts,
        train::Completions& completions, Results* results)
      : o_(o), control_(control), prompts_(prompts), completions_(completions) {
    if (results != nullptr) dealer_.emplace(*results, total());
    completions_.done = [this](train::Completion&& made) { keep(std::move(made)); };
  }

  std::int64_t total() const { return std::ssize(prompts_) * o_.samples; }
  std::int64_t tokens() const { return tokens_; }

  void run() {
    ProgressLine progress("generate", ProgressLine::Unit::things,
                          Screen::terminal(control_.rank()));
    for (;;) {
      const ordered_json dealt = exchange();
      if (dealer_) progress.at(dealer_->done(), total());
      if (dealt.is_null()) return;
      control_.together([&] {
        for (const std::int64_t number : dealt[static_cast<std::size_t>(control_.rank())]) {
          const auto prompt = static_cast<std::size_t>(number / o_.samples);
          completions_.add(static_cast<std::uint64_t>(number), prompts_[prompt].tokens);
        }
        for (int i = 0; i < kSteps && !completions_.idle(); ++i) completions_.step();
      });
    }
  }

 private:
  void keep(train::Completion&& made) {
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
    tokens_ += std::ssize(made.tokens);
    made_.push_back({number, to_text(line)});
  }

  /// Hands in what was made since; returns the numbers that each rank gets, or null at the end.
  ordered_json exchange() {
    const std::string own = to_text({{"free", completions_.free()}, {"made", made_}});
    made_ = ordered_json::array();
    const std::vector<std::string> all = control_.gather(own);
    std::string dealt;
    control_.together([&] {
      if (dealer_) dealt = deal(all);
    });
    return ordered_json::parse(control_.broadcast(dealt));
  }

  std::string deal(std::span<const std::string> all) {
    std::vector<std::int64_t> free;
    for (const std::string& text : all) {
      const auto of_rank = ordered_json::parse(text);
      free.push_back(of_rank["free"]);
      for (const auto& made : of_rank["made"]) dealer_->collect(made[0], made[1]);
    }
    if (dealer_->finished()) return "null";
    return to_text(dealer_->deal(std::move(free)));
  }

  const GenerateOptions& o_;
  const comm::Control& control_;
  std::span<const Prompt> prompts_;
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
  fmt::print("{}: {}, {} in {:.1f} s ({:.0f} tokens/s)\n", printable(o.out.string()),
             count_text(completions, "completion"),
             count_text(static_cast<std::int64_t>(tokens), "token"), seconds, tokens / seconds);
}

}  // namespace

ExitCode continue_prompts(const GenerateOptions& o, Speaker& speaker, const comm::Control& control,
                          const OwnMachine& machine) {
  std::vector<Prompt> prompts;
  std::int64_t most = 0;
  std::uint64_t hash = 0;
  std::optional<train::Generator> generator;
  std::optional<Results> results;
  control.together([&] {
    if (control.rank() == 0) Results::check_new(o.out);
    const std::int64_t context = speaker.source.model.context;
    prompts = read_prompts(o, speaker, context);
    for (const Prompt& prompt : prompts)
      most = std::max(most, std::min(context, std::ssize(prompt.tokens) + o.tokens));
    check_memory(o, speaker.source, machine, o.batch, most);
  });
  control.together([&] {
    if (control.rank() == 0) speaker.source.parameters = hashed(speaker.source.parameters, hash);
    generator.emplace(make_generator(o, speaker, machine, o.batch, most));
  });
  control.together([&] {
    if (control.rank() != 0) return;
    results.emplace(o.out, told_of(o, speaker, hash, hash_of(prompts)),
                    std::ssize(prompts) * o.samples);
    if (results->lines() == 0) return;
    tell(fmt::format("going on after {} of {}\n", results->lines(),
                     count_text(std::ssize(prompts) * o.samples, "completion")));
  });
  const std::int64_t before = results ? results->lines() : 0;
  train::Completions completions(*generator, o.rule, stop_rule(o, speaker), o.log_probabilities);
  Batch batch(o, control, prompts, completions, results ? &*results : nullptr);
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
