#include "setup/groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "core/terminal.hpp"
#include "deck/problems.hpp"
#include "optim/optimizer.hpp"
#include "plan/ir/inputs.hpp"
#include "setup/inputs.hpp"

namespace tessera::setup {
namespace {

/// A parameter, and what the optimizer tells it apart by.
struct Parameter {
  model::ParamDesc desc;
  optim::ParameterKind kind = optim::ParameterKind::vector;
};

/// The trained parameters by name: what is tied, or cut in tiles, is there once.
std::map<std::string, Parameter> parameters_of(const deck::Deck& deck) {
  std::map<std::string, Parameter> all;
  for (const model::UnitDesc& unit : model::model_units(model_config(deck.model, deck.task), 1)) {
    if (!unit.traits.trained) continue;
    for (const model::ParamDesc& p : unit.params)
      all.try_emplace(p.name, p, plan::kind_of(unit, p));
  }
  return all;
}

/// How a message names a group.
std::string named(const deck::ParameterGroup& group) {
  return group.name == group.match ? fmt::format("\"{}\"", group.match)
                                   : fmt::format("\"{}\" (\"{}\")", group.match, group.name);
}

}  // namespace

void check_groups(const deck::LoadedDeck& loaded) {
  constexpr const char* kKey = "optimizer.groups";
  const auto& groups = loaded.deck.optimizer.groups;
  if (groups.empty()) return;
  const auto parameters = parameters_of(loaded.deck);
  deck::Problems problems;
  const auto problem = [&](const std::string& text) {
    problems.add(loaded.place(kKey), kKey, printable(text));
  };
  std::vector<int> found(groups.size());
  bool twice = false;
  for (const auto& [name, p] : parameters) {
    const deck::ParameterGroup* first = nullptr;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (!optim::matches(groups[g], name)) continue;
      ++found[g];
      if (first != nullptr && !twice) {
        twice = true;
        problem(fmt::format("optimizer.groups: {} and {} both match {} (make one of them narrower)",
                            named(*first), named(groups[g]), name));
      }
      first = &groups[g];
    }
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (found[g] > 0) continue;
    problem(fmt::format("optimizer.groups: {} matches no parameter (names are like {} and {})",
                        named(groups[g]), parameters.begin()->first, parameters.rbegin()->first));
  }
  problems.throw_if_any();
}

std::string groups_text(const deck::Deck& deck) {
  if (deck.optimizer.groups.empty()) return "";
  struct Row {
    std::string group;
    optim::UpdateTerms terms;
    std::int64_t tensors = 0, elements = 0;
  };
  const optim::Optimizer optimizer = optim::make_optimizer(deck.optimizer);
  // In the deck's order, what decays first; then what is in no group.
  std::map<std::pair<std::size_t, double>, Row> rows;
  for (const auto& [name, p] : parameters_of(deck)) {
    const deck::ParameterGroup* group = optimizer.group_of(name);
    const bool is_matrix = p.kind != optim::ParameterKind::vector;
    const std::size_t others = optimizer.groups.size() + (is_matrix ? 0 : 1);
    const std::size_t place =
        group == nullptr ? others : static_cast<std::size_t>(group - optimizer.groups.data());
    const optim::UpdateTerms terms = optimizer.terms_of(name, p.kind);
    Row& row = rows[{place, -terms.weight_decay}];
    row.group = group != nullptr ? printable(group->name)
                : is_matrix      ? "(other matrices)"
                                 : "(other vectors)";
    row.terms = terms;
    ++row.tensors, row.elements += p.desc.elements();
  }
  std::string text = fmt::format("{:<34}{:>8}{:>16}{:>12}{:>15}\n", "optimizer.groups", "tensors",
                                 "elements", "lr factor", "weight decay");
  for (const auto& [place, row] : rows) {
    text += fmt::format("  {:<32}{:>8}{:>16}{:>12g}{:>15g}\n", row.group, row.tensors, row.elements,
                        row.terms.lr_factor, row.terms.weight_decay);
  }
  return text;
}

}  // namespace tessera::setup
