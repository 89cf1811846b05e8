// The resolved deck as TOML text.
#include <fmt/format.h>

#include "deck/deck.hpp"
#include "deck/schema.hpp"

namespace tessera::deck {

std::string run_directory(const Deck& deck) {
  constexpr std::string_view kVariable = "{name}";
  std::string path = deck.run.dir;
  for (std::size_t at = path.find(kVariable); at != std::string::npos;
       at = path.find(kVariable, at + deck.run.name.size())) {
    path.replace(at, kVariable.size(), deck.run.name);
  }
  return path;
}

std::string to_toml(const Deck& deck) {
  std::string out;
  std::string_view section;
  for (const SchemaRow& row : schema_rows()) {
    if (row.section != section) {
      section = row.section;
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    }
    const Value value = row.field.get(deck);
    if (value.unset()) {
      out += fmt::format("# {} is unset: {}\n", row.key, row.rules.unset);
    } else {
      out += fmt::format("{} = {}\n", row.key, value_text(value));
    }
  }
  return out;
}

}  // namespace tessera::deck
