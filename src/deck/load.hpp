// Reading a deck: files, includes and --set become a checked Deck in which nothing is left open.
// Everything that is wrong is reported at once, in one DeckError with a line a problem.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "deck/deck.hpp"
#include "deck/value.hpp"

namespace tessera::deck {

/// A deck, and where its values come from, so that code that uses one can throw a DeckError that
/// names the place.
struct LoadedDeck {
  struct Origin {
    SourceLocation place;
    bool explicitly_set = false;  // by the user, not by a preset, a model directory or a family
  };

  Deck deck;
  std::string name;  // the deck's path as the user gave it
  std::map<std::string, Origin, std::less<>> origins;
  /// Keys of positions that a model directory states otherwise than the user, and how.
  struct Restated {
    std::string key, theirs, place;
  };
  std::vector<Restated> restated;

  /// Keys are full names like "zero.stage".
  bool explicitly_set(std::string_view key) const;
  SourceLocation place(std::string_view key) const;
  /// "deck.toml:12:10"; the deck's first line for a key that nothing sets.
  std::string where(std::string_view key) const { return place(key).text(); }
  /// Of a relative path that this key holds and at which there is nothing: in parentheses, to what
  /// paths are relative, and where the file is if it lies relative to the deck. Else empty.
  std::string path_hint(std::string_view key, const std::string& path) const;
};

/// A key, like "model.layers", as a model directory states it.
struct ArchitectureKey {
  std::string key;
  std::variant<std::int64_t, double, bool, std::string, std::vector<std::string>> value;
  std::string place;  // for messages, like "dir/config.json"
  bool fixed = true;  // false: the user may say otherwise
};

/// Reads the architecture from the directory that model.init_from names, for a deck in which as yet
/// is what the user said. An empty function leaves the directory alone: resolved decks spell the
/// architecture out.
using ArchitectureReader =
    std::function<std::vector<ArchitectureKey>(const std::string& dir, const LoadedDeck& said)>;

/// Reads the deck at `path`, then applies `sets` ("section.key=value") in order. Throws DeckError.
LoadedDeck load_deck(const std::string& path, std::span<const std::string> sets = {},
                     const ArchitectureReader& reader = {});

/// The same for a deck's text; `name` stands for its path.
LoadedDeck parse_deck(std::string_view text, const std::string& name,
                      std::span<const std::string> sets = {},
                      const ArchitectureReader& reader = {});

}  // namespace tessera::deck
