// The largest micro-batch.
#include <ranges>
#include <set>

#include "core/bytes.hpp"
#include "deck/ranks.hpp"
#include "setup/budget.hpp"
#include "setup/inputs.hpp"
#include "setup/products.hpp"
#include "setup/traffic.hpp"
#include "verbs/check/check.hpp"

namespace tessera::verbs {

std::string fit_text(const LayoutOptions& layout) {
  const Planner planner = make_planner(layout);
  setup::check_traffic(planner.loaded, planner.inputs.layout.node_of);
  const auto budget = device_budget(planner.loaded.deck);
  if (!budget) {
    throw DeckError(
        fmt::format("{}: --fit needs memory.device as a number of bytes, or --device-memory",
                    planner.loaded.where("memory.device")));
  }
  std::string text;
  std::optional<Checked> smallest;
  std::set<std::string> refusals;
  for (const std::int64_t micro :
       std::views::reverse(setup::runnable_micros(planner.loaded, layout.ranks))) {
    try {
      smallest = check_other(layout, {fmt::format("batch.micro={}", micro)});
    } catch (const DeckError& e) {  // more than a plan can hold
      refusals.insert(e.what());
      text += fmt::format("batch.micro = {}: {}\n", micro, e.what());
      continue;
    }
    const plan::Ledger& ledger = smallest->largest_rank().ledger;
    const bool fits = ledger.device() <= *budget;
    text += fmt::format("batch.micro = {} ({}): {} of {}, {}\n", micro,
                        count_text(smallest->micro_batches(), "micro-batch", "micro-batches"),
                        human_bytes(ledger.device()), human_bytes(*budget),
                        fits ? "the largest that fits" : "too much");
    if (fits) return text;
  }
  if (!smallest && refusals.size() == 1)
    throw DeckError(Lines{*refusals.begin()});  // not micro's fault
  if (!smallest) throw DeckError(Lines{"there is no batch.micro for this deck:\n" + text});
  const plan::Ledger& ledger = smallest->largest_rank().ledger;
  setup::check_budget(smallest->planner.loaded, smallest->mesh(), ledger.arenas);
  throw InternalError("a batch.micro that neither fits nor does not");
}

}  // namespace tessera::verbs
