// The course of a run over its steps: learning rate, batch, length of sequences, and its end.
#include <array>
#include <cmath>
#include <map>

#include "core/bytes.hpp"
#include "core/error.hpp"
#include "core/terminal.hpp"
#include "data/corpora.hpp"
#include "data/prompts.hpp"
#include "data/samples.hpp"
#include "deck/load.hpp"
#include "optim/learning_rate.hpp"
#include "setup/architecture.hpp"
#include "setup/products.hpp"
#include "verbs/check/check.hpp"
#include "verbs/report/chart.hpp"

namespace tessera::verbs {
namespace {

/// The first key that counts passes over the training data; nothing where none does.
const char* key_in_epochs(const deck::Deck& deck) {
  const deck::ScheduleSection& s = deck.schedule;
  if (deck.run.epochs) return "run.epochs";
  if (s.warmup_epochs) return "schedule.warmup_epochs";
  if (s.decay_epochs) return "schedule.decay_epochs";
  if (s.kind == deck::ScheduleKind::step && s.step_epochs) return "schedule.step_epochs";
  return nullptr;
}

/// Of one pass; 0 where the deck asks for no lengths in epochs, so that its data may be elsewhere.
std::int64_t sequences_of_epoch(const deck::LoadedDeck& loaded) {
  const char* key = key_in_epochs(loaded.deck);
  if (key == nullptr) return 0;
  try {
    if (deck::draws_answers(loaded.deck.task.kind))
      return loaded.deck.rollout.samples * std::ssize(data::open_prompts(loaded).all);
    const auto corpus = data::open_corpus(loaded, data::training_key(loaded.deck));
    return data::epoch_samples(*corpus, loaded.deck);
  } catch (Error& e) {
    e.add_context(fmt::format(
        "{}: {} counts passes over the training data, which must be here (or give the length in "
        "steps or tokens)",
        loaded.where(key), key));
    throw;
  }
}

class Schedule {
 public:
  explicit Schedule(const deck::LoadedDeck& loaded)
      : deck_(loaded.deck),
        sequences_(sequences_of_epoch(loaded)),
        timeline_(loaded.deck.batch, sequences_),
        steps_(length(loaded)),
        rate_(deck_.schedule, deck_.optimizer.lr, timeline_, steps_) {}

  std::string title() const {
    const std::int64_t first = timeline_.sequence(1), last = timeline_.sequence(steps_);
    std::string text = fmt::format(
        "{}: {} steps of {} tokens a sequence, {} tokens in all", printable(deck_.run.name), steps_,
        first == last ? fmt::format("{}", last) : fmt::format("{} to {}", first, last),
        human_count(tokens(steps_)));
    if (sequences_ > 0) text += fmt::format(", {:.4g} epochs", epochs(steps_));
    return text;
  }

  std::vector<Chart> charts() const {
    const auto of = [&](const char* title, ChartLine line) {
      return Chart{
          .title = title,
          .unit = "",
          .lines = {std::move(line)},
          .below =
              [this](double step) { return human_count(tokens(std::llround(step))) + " tokens"; },
          .scale = Chart::Scale::from_zero};
    };
    ChartLine rates{.name = "rate", .x = {}, .y = {}}, batches{.name = "batch", .x = {}, .y = {}},
        lengths{.name = "length", .x = {}, .y = {}};
    for (const std::int64_t step : drawn_steps()) {
      rates.x.push_back(static_cast<double>(step));
      rates.y.push_back(lr(step));
      add_level(batches, step, timeline_.global(step));
      add_level(lengths, step, timeline_.sequence(step));
    }
    std::vector<Chart> all = {of("learning rate", std::move(rates)),
                              of("sequences a step", std::move(batches))};
    if (!deck_.batch.curriculum.empty()) all.push_back(of("tokens a sequence", std::move(lengths)));
    return all;
  }

  /// The steps at which something begins or ends.
  std::string table() const {
    std::map<std::int64_t, std::string> rows;
    const auto add = [&](std::int64_t step, const std::string& what) {
      std::string& text = rows[step];
      text += (text.empty() ? "" : "; ") + what;
    };
    constexpr std::int64_t kMostDrops = 12;
    add(1, "the run begins");
    for (const auto& turn : rate_.turns(kMostDrops)) add(turn.update, turn.what);
    const auto& phases = timeline_.phases();
    for (std::size_t i = 1; i < phases.size() && phases[i].first <= steps_; ++i) {
      if (phases[i].global != phases[i - 1].global) add(phases[i].first, "the batch changes");
      if (phases[i].sequence != phases[i - 1].sequence)
        add(phases[i].first, fmt::format("sequences of {}", phases[i].sequence));
    }
    add(steps_, "the run ends");
    std::string text = fmt::format("{:>12}  {:>13}  {:>9}  {:>7}\n", "step", "learning rate",
                                   "sequences", "tokens");
    for (const auto& [step, what] : rows) {
      text += fmt::format("{:>12}  {:>13.6g}  {:>9}  {:>7}  {}\n", step, lr(step),
                          timeline_.global(step), human_count(tokens(step)), what);
    }
    return text;
  }

 private:
  std::int64_t length(const deck::LoadedDeck& loaded) const {
    constexpr std::int64_t kMost = std::int64_t{1}
                                   << 30;  // steps whose sequences 64 bits can count
    const std::int64_t steps = timeline_.run_steps(deck_.run);
    if (steps <= kMost) return steps;
    throw DeckError(fmt::format("{}: a run of {} steps is too long to draw (at most {})",
                                loaded.where("run.steps"), steps, kMost));
  }

  /// A line that stays, or goes up or down at once.
  static void add_level(ChartLine& line, std::int64_t step, std::int64_t level) {
    const auto x = static_cast<double>(step), y = static_cast<double>(level);
    if (!line.y.empty() && line.y.back() != y) {
      line.x.push_back(x);
      line.y.push_back(line.y.back());
    }
    line.x.push_back(x);
    line.y.push_back(y);
  }

  /// All of them, or so many that no column of a picture lacks one.
  std::vector<std::int64_t> drawn_steps() const {
    constexpr std::int64_t kMost = 8192;
    const std::int64_t count = std::min(steps_, kMost);
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < count; ++i)
      all.push_back(count == 1 ? 1 : 1 + i * (steps_ - 1) / (count - 1));
    return all;
  }

  double lr(std::int64_t step) const { return timeline_.lr_scale(step) * rate_.at(step); }
  /// After so many steps.
  double tokens(std::int64_t step) const {
    return static_cast<double>(timeline_.tokens_after(step));
  }
  double epochs(std::int64_t step) const {
    const auto [one, of] = timeline_.of_epochs(1);
    return static_cast<double>(timeline_.after(step, of)) / static_cast<double>(one);
  }

  const deck::Deck& deck_;
  std::int64_t sequences_;  // of an epoch; 0: not known
  optim::Timeline timeline_;
  std::int64_t steps_;
  optim::LearningRate rate_;
};

}  // namespace

std::string schedule_text(const DeckOptions& options, std::optional<std::int64_t> ranks,
                          PictureFormat format) {
  const deck::LoadedDeck loaded =
      deck::load_deck(options.path, options.sets, setup::read_architecture);
  if (ranks) setup::check_on_ranks(loaded, *ranks);
  const Schedule schedule(loaded);
  if (format == PictureFormat::svg) return picture(schedule.title(), schedule.charts());
  constexpr std::array kRows = {14, 6, 6};
  std::string text = schedule.title() + "\n";
  const auto charts = schedule.charts();
  for (std::size_t i = 0; i < charts.size(); ++i)
    text += '\n' + terminal_chart(charts[i], kRows.at(i));
  return text + "\nThe rate counts updates: a step that is skipped puts it off by one.\n\n" +
         schedule.table();
}

}  // namespace tessera::verbs
