#include "deck/schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace tessera::deck {

namespace {

const std::map<std::string_view, const SchemaRow*>& index() {
  static const auto kIndex = [] {
    std::map<std::string_view, const SchemaRow*> all;
    for (const SchemaRow& row : schema_rows()) all.emplace(row.name, &row);
    return all;
  }();
  return kIndex;
}

bool numbers_within(const Limits& limits, const Value& value) {
  if (const auto* integer = value.as<std::int64_t>()) {
    return limits.allow(static_cast<double>(*integer));
  }
  if (const auto* number = value.as<double>()) return limits.allow(*number);
  const List* list = value.as<List>();
  return !list || std::all_of(list->begin(), list->end(),
                              [&](const Value& item) { return numbers_within(limits, item); });
}

}  // namespace

bool Limits::allow(double number) const {
  if (in_f32) {
    if (std::abs(number) > double{std::numeric_limits<float>::max()}) return false;
    number = double{static_cast<float>(number)};
  }
  return (above_low ? number > low : number >= low) &&
         (below_high ? number < high : number <= high);
}

std::string Limits::text() const {
  const auto number = [](double x) { return fmt::format("{:.0f}", x); };
  const std::string as = in_f32 ? " as an f32" : "";
  if (low == -std::numeric_limits<double>::infinity()) return "";
  std::string floor = (above_low ? "> " : ">= ") + number(low);
  if (high == std::numeric_limits<double>::infinity()) return floor + as;
  if (above_low || below_high)
    return floor + (below_high ? " and < " : " and <= ") + number(high) + as;
  return number(low) + " to " + number(high) + as;
}

std::string SchemaRow::allowed() const {
  const std::string range = rules.limits.text();
  return range.empty() ? field.type() : field.type() + ", " + range;
}

std::string SchemaRow::available() const {
  if (rules.built == "unset") return "leave it out";
  std::string words = "only ";
  for (const char c : rules.built) words += c == ' ' ? ", " : std::string(1, c);
  return words;
}

bool SchemaRow::within_limits(const Deck& deck) const {
  return numbers_within(rules.limits, field.get(deck));
}

bool SchemaRow::is_built(const Deck& deck) const {
  if (rules.built.empty()) return true;
  const Value value = field.get(deck);
  const auto* word = value.as<std::string>();
  const std::string wanted = word ? *word : value_text(value);
  const std::string words = fmt::format(" {} ", rules.built);
  if (!word && words.find(" numbers ") != std::string::npos) return true;
  return words.find(fmt::format(" {} ", wanted)) != std::string::npos;
}

const SchemaRow* find_row(std::string_view name) {
  const auto found = index().find(name);
  return found == index().end() ? nullptr : found->second;
}

bool is_section(std::string_view name) {
  return std::any_of(schema_sections().begin(), schema_sections().end(),
                     [&](const SchemaSection& section) { return section.name == name; });
}

}  // namespace tessera::deck
