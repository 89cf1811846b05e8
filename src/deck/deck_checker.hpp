// What checks of several keys have in common: they look at keys that are right by themselves, and
// name the place of what is wrong. The parts of check_deck() that are files of their own.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "deck/load.hpp"
#include "deck/problems.hpp"
#include "deck/schema.hpp"

namespace tessera::deck {

class DeckChecker {
 public:
  DeckChecker(const LoadedDeck& loaded, Problems& problems)
      : loaded_(loaded), deck_(loaded.deck), problems_(problems) {}

 protected:
  /// Whether somebody has said the key.
  bool set(std::string_view key) const { return loaded_.origins.contains(key); }

  /// Whether nothing is wrong with the keys so far.
  bool usable(std::initializer_list<std::string_view> keys) const {
    return std::none_of(keys.begin(), keys.end(),
                        [&](std::string_view key) { return problems_.about(key); });
  }

  void problem(std::string_view key, std::string text) {
    problems_.add(loaded_.place(key), key, std::move(text));
  }

  void at_most(std::string_view key, std::int64_t value, std::string_view limit_key,
               std::int64_t limit) {
    if (!usable({key, limit_key}) || value <= limit) return;
    problem(key, fmt::format("{} = {} is more than {} = {} (at most {})", key, value, limit_key,
                             limit, limit));
  }

  void at_most_one(std::initializer_list<std::string_view> keys) {
    std::string_view first;
    for (const std::string_view key : keys) {
      if (find_row(key)->field.get(deck_).unset()) continue;
      if (first.empty()) {
        first = key;
      } else {
        problem(key, fmt::format("{} and {} ({}) say the same thing: keep one", key, first,
                                 loaded_.where(first)));
      }
    }
  }

  /// A key that only has a meaning beside others.
  void needs(std::string_view key, bool used, bool good, std::string_view what) {
    if (usable({key}) && used && !good)
      problem(key, fmt::format("{} has no effect without {} (leave it out)", key, what));
  }

  /// The same of all keys of a section but `others`, whose defaults follow from other keys.
  void section_needs(std::string_view section, std::string_view what,
                     std::initializer_list<std::string_view> others = {}) {
    for (const SchemaRow& row : schema_rows()) {
      if (row.section != section || std::ranges::find(others, row.name) != others.end() ||
          !loaded_.explicitly_set(row.name))
        continue;
      needs(row.name, row.field.get(deck_) != row.field.get(Deck{}), false, what);
    }
  }

  /// A key whose value does not go with another's, which `other` says.
  void not_with(std::string_view other, std::string_view key, bool used, std::string_view why,
                std::string_view remedy) {
    if (!usable({key}) || !used) return;
    problem(key, fmt::format("{} = {} is not possible with {}: {} ({})", key,
                             value_text(find_row(key)->field.get(deck_)), other, why, remedy));
  }

  const LoadedDeck& loaded_;
  const Deck& deck_;
  Problems& problems_;
};

/// Conditions over [data], [task], [batch] and the lengths of runs.
void check_data(const LoadedDeck& loaded, Problems& problems);
/// Those over ranks that divide sequences.
void check_context(const LoadedDeck& loaded, Problems& problems);
/// Those over [moe].
void check_experts(const LoadedDeck& loaded, Problems& problems);
/// Those over [adapter].
void check_adapter(const LoadedDeck& loaded, Problems& problems);

}  // namespace tessera::deck
