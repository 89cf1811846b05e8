// Everything wrong with a deck, collected so that the user sees all of it at once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "deck/value.hpp"

namespace tessera::deck {

/// The key of a problem with a whole file: what it says is unknown.
inline constexpr std::string_view kUnreadable = "(file)";

class Problems {
 public:
  /// `key` is the full name of the key at fault.
  void add(const SourceLocation& place, std::string_view key, std::string text);

  /// Whether a problem with `key` was reported: then checks that depend on it are left out.
  bool about(std::string_view key) const;

  /// Throws one DeckError with a line a problem, in the order of the text; does nothing if empty.
  void throw_if_any() const;

 private:
  struct Problem {
    SourceLocation place;
    std::string key;
    std::string text;
  };
  std::vector<Problem> all_;
};

}  // namespace tessera::deck
