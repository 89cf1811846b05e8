// tessera train, and the options that several verbs share.
#include <CLI/CLI.hpp>

#include <map>

#include "core/dtype.hpp"
#include "core/terminal.hpp"
#include "deck/remarks.hpp"
#include "deck/value.hpp"
#include "optim/optimizer.hpp"
#include "setup/architecture.hpp"
#include "train/state/fit_ranks.hpp"
#include "train/trainer.hpp"
#include "verbs/load.hpp"
#include "verbs/model_source.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {

void DeckOptions::add_to(CLI::App& app, const std::string& what) {
  app.add_option("DECK", path, what)->required();
  app.add_option("--set", sets, "section.key=value: overrides the deck; may be repeated")
      ->take_all()
      ->allow_extra_args(false);
}

void add_allow_non_finite(CLI::App& app, const std::function<void()>& allow) {
  app.add_flag_callback("--allow-non-finite", allow,
                        "take weights that are NaN or infinite as they are, not refuse them");
}

void add_ema(CLI::App& app, std::string& weights) {
  weights = "master";
  app.add_flag_callback(
      "--ema", [&weights] { weights = optim::kEma; },
      "take the averaged weights of a run with optimizer.ema");
}

void add_type(CLI::App& app, const std::function<void(DType)>& take,
              const std::string& unless_given, const std::string& what) {
  std::map<std::string, DType> types;
  for (const DType each : {DType::f32, DType::bf16, DType::f16})
    types.emplace(to_string(each), each);
  app.add_option_function<std::string>(
         "--type", [take, types](const std::string& word) { take(types.at(word)); }, what)
      ->default_str(unless_given)
      ->check(CLI::IsMember(std::vector<std::string>{"f32", "bf16", "f16"}));
}

void add_type(CLI::App& app, DType& type, const std::string& what) {
  add_type(
      app, [&type](DType given) { type = given; }, std::string(to_string(type)), what);
}

void add_backend(CLI::App& app, std::optional<deck::Backend>& backend, const std::string& what) {
  std::vector<std::string> words;
  for (const auto& [kind, word] : EnumWords<deck::Backend>::table) words.emplace_back(word);
  app.add_option_function<std::string>(
         "--backend",
         [&backend](const std::string& word) { backend = enum_from_word<deck::Backend>(word); },
         what)
      ->check(CLI::IsMember(words));
}

namespace {

DeckOnRanks load(const DeckOptions& options, Layout layout, std::int64_t ranks) {
  if (!std::filesystem::is_directory(options.path)) {
    return {.loaded = deck::load_deck(options.path, options.sets, setup::read_architecture),
            .checkpoint = {}};
  }
  auto checkpoint = find_checkpoint(options.path);
  if (!checkpoint) {
    throw DataError(
        fmt::format("{} is neither a deck nor a checkpoint and holds none", options.path));
  }
  const std::string name = checkpoint->path.string();
  std::vector<std::string> sets{"run.resume=" + deck::value_text({name, {}})};
  sets.insert(sets.end(), options.sets.begin(), options.sets.end());
  const io::CheckpointHeader header = io::read_manifest(checkpoint->path).header;
  if (layout == Layout::as_written)
    return {deck::parse_deck(header.deck, name, sets), std::move(checkpoint)};
  auto [loaded, note] = train::fit_to_ranks({.text = header.deck, .name = name}, sets, ranks);
  if (!note.empty()) tell(printable(note) + "\n");
  return {std::move(loaded), std::move(checkpoint)};
}

}  // namespace

DeckOnRanks load_on_all(const comm::Control& control, const DeckOptions& options, Layout layout) {
  DeckOnRanks own;
  control.together([&] {
    if (control.rank() == 0) own = load(options, layout, control.size());
  });
  const std::string text = control.broadcast(control.rank() == 0 ? to_toml(own.loaded.deck) : "");
  if (control.rank() != 0) own.loaded = deck::parse_deck(text, options.path);
  return own;
}

Verb train(CLI::App& app) {
  auto* verb = app.add_subcommand(
      "train", "train as a deck says; continues from the newest checkpoint of its run directory");
  auto options = std::make_shared<DeckOptions>();
  options->add_to(*verb);
  return {.launch = Launch::ranks, .run = {}, .run_on_ranks = [options](const train::Job& job) {
            train::catch_stop_signals();
            auto deck = load_on_all(job.control, *options);
            if (job.control.rank() == 0) tell(deck::remarks_text(deck.loaded));
            train::Trainer trainer(deck.loaded, job);
            deck.checkpoint.reset();  // it is read, and may be pruned
            return trainer.train();
          }};
}

}  // namespace tessera::verbs
