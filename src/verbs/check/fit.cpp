// The largest micro-batch.
#include <ranges>

#include "deck/ranks.hpp"
#include "train/setup.hpp"
#include "verbs/check/check.hpp"

namespace tessera::verbs {

std::string fit_text(const LayoutOptions& layout) {
  const Planner planner = make_planner(layout);
  const auto budget = device_budget(planner.loaded.deck);
  if (!budget) {
    throw DeckError(
        fmt::format("{}: --fit needs memory.device as a number of bytes, or --device-memory",
                    planner.loaded.where("memory.device")));
  }
  std::string text;
  std::optional<Checked> smallest;
  for (const std::int64_t micro :
       std::views::reverse(deck::legal_micros(planner.loaded, layout.ranks))) {
    auto checked = check_variant(layout, {fmt::format("batch.micro={}", micro)});
    if (!checked) continue;  // fp8 products want more rows
    smallest = std::move(checked);
    const plan::Ledger& ledger = smallest->dearest().ledger;
    const bool fits = ledger.device() <= *budget;
    text += fmt::format("batch.micro = {} ({} micro-batches): {} of {}, {}\n", micro,
                        smallest->micro_batches(), plan::human_bytes(ledger.device()),
                        plan::human_bytes(*budget), fits ? "the largest that fits" : "too much");
    if (fits) return text;
  }
  TESSERA_CHECK(smallest, "the deck's own batch.micro is refused");
  const plan::Ledger& ledger = smallest->dearest().ledger;
  train::check_budget(smallest->planner.loaded, smallest->mesh(), ledger.arenas);
  throw InternalError("a batch.micro that neither fits nor does not");
}

}  // namespace tessera::verbs
