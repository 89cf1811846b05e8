#include "setup/adapters.hpp"

#include <algorithm>

#include "core/pattern.hpp"
#include "core/terminal.hpp"
#include "deck/problems.hpp"
#include "deck/schema.hpp"
#include "deck/value.hpp"
#include "io/hf_codes.hpp"
#include "setup/inputs.hpp"
#include "setup/judges.hpp"

namespace tessera::setup {
namespace {

/// The matrices of the model that may have adapters: their units, by name, in the model's order.
std::vector<std::string> adaptable(const deck::Deck& deck) {
  std::vector<std::string> all;
  for (const model::UnitDesc& unit : model::model_units(model_config(deck.model, deck.task))) {
    for (const model::ParamDesc& p : unit.params) {
      if (model::adapter_target(unit.layer, p.name)) all.push_back(p.name);
    }
  }
  return all;
}

/// "block.N.mlp" for "block.3.mlp": a name stands for those of all layers.
std::string of_any_layer(const std::string& name) {
  constexpr std::string_view kBlock = "block.";
  if (!name.starts_with(kBlock)) return name;
  const std::size_t behind = std::min(name.find('.', kBlock.size()), name.size());
  return "block.N" + name.substr(behind);
}

std::string names_of_any_layer(const std::vector<std::string>& names) {
  std::vector<std::string> shown;
  for (const std::string& name : names) {
    const std::string any = of_any_layer(name);
    if (std::ranges::find(shown, any) == shown.end()) shown.push_back(any);
  }
  return fmt::format("{}", fmt::join(shown, ", "));
}

/// A problem for each pattern of a key that matches none of these names; `those` says which are.
void check_patterns(const deck::LoadedDeck& loaded, const char* key,
                    const std::vector<std::string>& patterns, const std::vector<std::string>& names,
                    const std::string& those, deck::Problems& problems) {
  for (const std::string& pattern : patterns) {
    if (std::ranges::any_of(names, [&](const auto& n) { return matches_pattern(pattern, n); }))
      continue;
    problems.add(loaded.place(key), key,
                 printable(fmt::format("{}: \"{}\" matches no {} of N below model.layers = {}", key,
                                       pattern, those, loaded.deck.model.layers)));
  }
}

}  // namespace

void check_adapter_targets(const deck::LoadedDeck& loaded) {
  constexpr const char* kKey = "adapter.targets";
  const deck::AdapterSection& adapter = loaded.deck.model.adapter;
  if (adapter.kind == deck::AdapterKind::none) return;
  const auto names = adaptable(loaded.deck);
  deck::Problems problems;
  check_patterns(loaded, kKey, adapter.targets, names,
                 "matrix that may have an adapter, which are " + names_of_any_layer(names),
                 problems);
  problems.throw_if_any();
}

void check_frozen_layers(const deck::LoadedDeck& loaded) {
  constexpr const char* kKey = "frozen.layers";
  const auto& patterns = loaded.deck.model.frozen.layers;
  if (patterns.empty()) return;
  const auto units = model::model_units(model_config(loaded.deck.model, loaded.deck.task));
  std::vector<std::string> names;
  for (const model::UnitDesc& unit : units) names.push_back(unit.layer);
  deck::Problems problems;
  check_patterns(loaded, kKey, patterns, names,
                 "layer, which are " + names_of_any_layer(names) + ",", problems);
  if (model::trained_count(units) == 0)
    problems.add(loaded.place(kKey), kKey,
                 fmt::format("frozen.layers = {} leaves nothing that is trained: leave some of {} "
                             "out",
                             deck::value_text(deck::find_row(kKey)->field.get(loaded.deck)),
                             names_of_any_layer(names)));
  const bool answers_stay = std::ranges::none_of(units, [](const model::UnitDesc& unit) {
    return unit.traits.trained && unit.kind != model::UnitKind::value_head;
  });
  if (has_value_head(loaded.deck.task) && answers_stay) {
    problems.add(
        loaded.place(kKey), kKey,
        fmt::format("frozen.layers = {} leaves nothing that is trained but value_head, and "
                    "answers would stay as they are: leave some of {} out",
                    deck::value_text(deck::find_row(kKey)->field.get(loaded.deck)),
                    names_of_any_layer(names)));
  }
  problems.throw_if_any();
}

std::string adapter_text(const deck::Deck& deck) {
  const deck::AdapterSection& adapter = deck.model.adapter;
  const bool adapters = adapter.kind != deck::AdapterKind::none;
  if (!adapters && deck.model.frozen.layers.empty()) return "";
  const auto units = model::model_units(model_config(deck.model, deck.task));
  const std::int64_t all = model::parameter_count(units), trained = model::trained_count(units);
  const auto format = frozen_codes(deck.model.frozen);
  const std::string codes =
      format ? fmt::format(", the matrices of blocks as {}", io::to_string(*format)) : "";
  const std::string what =
      adapters ? fmt::format("adapters    {} of rank {}:", enum_word(adapter.kind), adapter.rank)
               : "frozen      some layers:";
  return fmt::format("{} {} parameters are trained, {:.3g} % of all, and {} frozen{}\n", what,
                     trained, 100 * static_cast<double>(trained) / static_cast<double>(all),
                     all - trained, codes);
}

}  // namespace tessera::setup
