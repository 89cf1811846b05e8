#include "setup/adapters.hpp"

#include <algorithm>

#include "core/pattern.hpp"
#include "core/terminal.hpp"
#include "deck/problems.hpp"
#include "setup/inputs.hpp"

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

}  // namespace

void check_adapter_targets(const deck::LoadedDeck& loaded) {
  constexpr const char* kKey = "adapter.targets";
  const deck::AdapterSection& adapter = loaded.deck.model.adapter;
  if (adapter.kind == deck::AdapterKind::none) return;
  const auto names = adaptable(loaded.deck);
  // The names of the first layer of each kind stand for all.
  std::vector<std::string> shown;
  for (const std::string& name : names) {
    const std::string any = "block.N" + name.substr(name.find('.', name.find('.') + 1));
    if (std::ranges::find(shown, any) == shown.end()) shown.push_back(any);
  }
  deck::Problems problems;
  for (const std::string& pattern : adapter.targets) {
    if (std::ranges::any_of(names, [&](const auto& n) { return matches_pattern(pattern, n); }))
      continue;
    problems.add(loaded.place(kKey), kKey,
                 printable(fmt::format(
                     "adapter.targets: \"{}\" matches no matrix that may have an adapter, which "
                     "are {} of N below model.layers = {}",
                     pattern, fmt::join(shown, ", "), loaded.deck.model.layers)));
  }
  problems.throw_if_any();
}

void check_frozen_layers(const deck::LoadedDeck& loaded) {
  constexpr const char* kKey = "frozen.layers";
  const auto& patterns = loaded.deck.model.frozen.layers;
  if (patterns.empty()) return;
  const auto units = model::model_units(model_config(loaded.deck.model, loaded.deck.task));
  std::vector<std::string> shown;  // "block.N" for all blocks
  for (const model::UnitDesc& unit : units) {
    const std::string name = unit.kind == model::UnitKind::block ? "block.N" : unit.layer;
    if (std::ranges::find(shown, name) == shown.end()) shown.push_back(name);
  }
  deck::Problems problems;
  for (const std::string& pattern : patterns) {
    if (std::ranges::any_of(units,
                            [&](const auto& unit) { return matches_pattern(pattern, unit.layer); }))
      continue;
    problems.add(
        loaded.place(kKey), kKey,
        printable(fmt::format("frozen.layers: \"{}\" matches no layer, which are {}, of N below "
                              "model.layers = {}",
                              pattern, fmt::join(shown, ", "), loaded.deck.model.layers)));
  }
  if (model::trained_count(units) == 0)
    problems.add(loaded.place(kKey), kKey, "frozen.layers leaves nothing that is trained");
  problems.throw_if_any();
}

std::string adapter_text(const deck::Deck& deck) {
  const deck::AdapterSection& adapter = deck.model.adapter;
  const bool adapters = adapter.kind != deck::AdapterKind::none;
  if (!adapters && deck.model.frozen.layers.empty()) return "";
  const auto units = model::model_units(model_config(deck.model, deck.task));
  const std::int64_t all = model::parameter_count(units), trained = model::trained_count(units);
  const deck::FrozenSection& frozen = deck.model.frozen;
  const std::string codes = frozen.type == deck::FrozenType::none
                                ? ""
                                : fmt::format(", the matrices of blocks as {} in blocks of {}",
                                              enum_word(frozen.type), frozen.block);
  const std::string what =
      adapters ? fmt::format("adapters    {} of rank {}:", enum_word(adapter.kind), adapter.rank)
               : "frozen      some layers:";
  return fmt::format("{} {} parameters are trained, {:.3g} % of all, and {} frozen{}\n", what,
                     trained, 100 * static_cast<double>(trained) / static_cast<double>(all),
                     all - trained, codes);
}

}  // namespace tessera::setup
