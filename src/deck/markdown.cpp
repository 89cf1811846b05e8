// The tables of inputs/README.md, from the schema.
#include <fmt/format.h>

#include "deck/schema.hpp"

namespace tessera::deck {

namespace {

constexpr std::string_view kIntroduction = R"(# Decks

A deck is a TOML file that defines a run. `base_gpt2.toml` and `base_llama.toml` hold what the decks
of a family share; each of the others includes one of them and says in one screen what is its own.

    tessera check inputs/gpt2_124m.toml --ranks 8
    tessera train inputs/gpt2_124m.toml --set run.steps=100 --set zero.stage=3

`include = ["base_gpt2.toml"]` at the top is relative to the including file. Later files override
earlier ones, a file overrides what it includes, and `--set section.key=value` overrides all, in
order; its value is TOML, and a bare word is a string.

The tables below are generated from the schema in `src/deck`. *Resume* says what a change means when
a run continues from a checkpoint: free, logged as an event, or refused; a change of the architecture
is refused also when the checkpoint is an imported model or is only evaluated.
)";

/// Markdown tables take no bare '|'.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string default_cell(const SchemaRow& row) {
  if (row.rules.required) return "*required*";
  if (!row.rules.unset.empty()) return cell(row.rules.unset);
  return fmt::format("`{}`", value_text(row.field.get(Deck{})));
}

std::string meaning_cell(const SchemaRow& row) {
  std::string text = cell(row.meaning);
  if (!row.rules.unit.empty()) text += fmt::format(" ({})", row.rules.unit);
  if (!row.rules.built.empty()) text += fmt::format("; in this version: {}", row.available());
  return text;
}

}  // namespace

std::string schema_markdown() {
  std::string out(kIntroduction);
  for (const SchemaSection& section : schema_sections()) {
    out += fmt::format("\n## [{}]\n\n{}.\n", section.name, section.meaning);
    bool header = false;
    for (const SchemaRow& row : schema_rows()) {
      if (row.section != section.name) continue;
      if (!header)
        out += "\n| key | allowed | default | meaning | resume |\n|---|---|---|---|---|\n";
      header = true;
      out += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.key, cell(row.allowed()),
                         default_cell(row), meaning_cell(row), enum_word(row.rules.on_resume));
    }
    if (section.details != nullptr) out += section.details();
  }
  return out;
}

}  // namespace tessera::deck
