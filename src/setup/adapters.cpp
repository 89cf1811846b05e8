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

std::string adapter_text(const deck::Deck& deck) {
  const deck::AdapterSection& adapter = deck.model.adapter;
  if (adapter.kind == deck::AdapterKind::none) return "";
  const auto units = model::model_units(model_config(deck.model, deck.task));
  const std::int64_t all = model::parameter_count(units), trained = model::trained_count(units);
  return fmt::format(
      "adapters    {} of rank {}: {} parameters are trained, {:.3g} % of all, and {} frozen\n",
      enum_word(adapter.kind), adapter.rank, trained,
      100 * static_cast<double>(trained) / static_cast<double>(all), all - trained);
}

}  // namespace tessera::setup
