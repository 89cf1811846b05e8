#include "deck/remarks.hpp"

#include <fmt/format.h>

#include "core/terminal.hpp"
#include "deck/presets.hpp"
#include "deck/schema.hpp"
#include "deck/value.hpp"

namespace tessera::deck {

std::string remarks_text(const LoadedDeck& loaded) {
  std::string text;
  for (const auto& [key, theirs, place] : loaded.restated) {
    text += printable(fmt::format(
        "note: {}: {} = {} in place of {}, which {} says: positions are not those of its training",
        loaded.where(key), key, value_text(find_row(key)->field.get(loaded.deck)), theirs, place));
    text += '\n';
  }
  const auto by_set = [&](std::string_view key) { return loaded.place(key).column == 0; };
  if (!by_set("optimizer.name")) return text;
  for (const ImpliedKey& key : optimizer_keys(loaded.deck.optimizer.name)) {
    const Value value = find_row(key.name)->field.get(loaded.deck);
    if (!loaded.explicitly_set(key.name) || by_set(key.name) || value == key.value) continue;
    text += printable(
        fmt::format("note: {}: {} = {} stays with --set optimizer.name={}, whose default is {}",
                    loaded.where(key.name), key.name, value_text(value),
                    enum_word(loaded.deck.optimizer.name), value_text(key.value)));
    text += '\n';
  }
  return text;
}

}  // namespace tessera::deck
