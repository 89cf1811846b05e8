// tessera explain: what a deck's key means, as the reference in inputs/README.md has it.
#include <CLI/CLI.hpp>

#include <algorithm>

#include "core/error.hpp"
#include "deck/names.hpp"
#include "deck/schema.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

std::string default_text(const deck::SchemaRow& row) {
  if (row.rules.required) return "none: it must be given";
  if (!row.rules.unset.empty()) return std::string(row.rules.unset);
  return deck::value_text(row.field.get(deck::Deck{}));
}

std::string on_resume_text(deck::OnResume rule) {
  switch (rule) {
    case deck::OnResume::free: return "may change";
    case deck::OnResume::event: return "may change, and the change is reported";
    case deck::OnResume::refused: return "may not change";
    case deck::OnResume::architecture:
      return "may not change, nor where a model is imported or evaluated";
  }
  return "";
}

std::string row_text(const deck::SchemaRow& row) {
  std::string text =
      fmt::format("{}\n  meaning   {}\n  allowed   {}\n", row.name, row.meaning, row.allowed());
  if (!row.rules.built.empty()) text += fmt::format("  built     {}\n", row.available());
  text += fmt::format("  default   {}\n", default_text(row));
  if (!row.rules.unit.empty()) text += fmt::format("  unit      {}\n", row.rules.unit);
  return text + fmt::format("  resuming  it {}\n", on_resume_text(row.rules.on_resume));
}

std::string section_text(const deck::SchemaSection& section) {
  std::string text = fmt::format("[{}] {}\n", section.name, section.meaning);
  for (const deck::SchemaRow& row : deck::schema_rows()) {
    if (row.section == section.name) text += '\n' + row_text(row);
  }
  return section.details == nullptr ? text : text + section.details();
}

/// What somebody meant by a name that is none.
std::string hint(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  if (dot != std::string::npos) {
    const std::string section = name.substr(0, dot);
    return deck::is_section(section) ? deck::key_hint(section, name.substr(dot + 1))
                                     : deck::section_hint(section);
  }
  std::vector<std::string_view> sections;
  for (const auto& section : deck::schema_sections()) sections.push_back(section.name);
  const std::string key =
      deck::nearest_name(name, sections).empty() ? deck::key_hint("", name) : "";
  return key.empty() ? deck::section_hint(name) : key;
}

/// A key below what its section says.
std::string key_text(const deck::SchemaRow& row) {
  const auto section =
      std::ranges::find(deck::schema_sections(), row.section, &deck::SchemaSection::name);
  std::string text = fmt::format("[{}] {}\n\n{}", section->name, section->meaning, row_text(row));
  if (section->details != nullptr)
    text += fmt::format("  more      tessera explain {}\n", section->name);
  return text;
}

/// All keys of a section, a key by its full name, or every key of this name in any section.
std::string explanation(const std::string& name) {
  for (const auto& section : deck::schema_sections()) {
    if (section.name == name) return section_text(section);
  }
  std::string text;
  for (const deck::SchemaRow& row : deck::schema_rows()) {
    if (row.name == name || row.key == name) text += (text.empty() ? "" : "\n") + key_text(row);
  }
  if (!text.empty()) return text;
  throw DeckError(fmt::format("no key or section of a deck is called {}{}", name, hint(name)));
}

std::string all_sections() {
  std::string text;
  for (const auto& section : deck::schema_sections())
    text += fmt::format("{:<15}{}\n", section.name, section.meaning);
  return text;
}

}  // namespace

Verb explain(CLI::App& app) {
  auto* verb = app.add_subcommand("explain", "say what a deck's key means, allows and defaults to");
  auto name = std::make_shared<std::string>();
  verb->add_option("KEY", *name,
                   "a key, as zero.stage, or a section; without one sections are listed");
  return {.launch = Launch::single,
          .run =
              [name] {
                fmt::print("{}", name->empty() ? all_sections() : explanation(*name));
                return ExitCode::ok;
              },
          .run_on_ranks = {}};
}

}  // namespace tessera::verbs
