// A small valid deck and helpers that the deck tests share.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.hpp"
#include "deck/load.hpp"

namespace tessera::deck {

inline constexpr std::string_view kSmallDeck = R"([run]
steps = 10

[model]
layers = 2
heads = 4
hidden = 32
vocab = 65
context = 16

[data]
train = ["tokens"]

[batch]
global = 8

[optimizer]
lr = 1e-3
)";

inline LoadedDeck small_deck(const std::vector<std::string>& sets = {}) {
  return parse_deck(kSmallDeck, "deck.toml", sets);
}

/// What a deck is refused with; empty if it is accepted.
inline std::string refusal(std::string_view text, const std::vector<std::string>& sets = {},
                           const ArchitectureReader& reader = {}) {
  try {
    parse_deck(text, "deck.toml", sets, reader);
    return "";
  } catch (const DeckError& error) {
    return error.what();
  }
}

/// The small deck with one key changed.
inline std::string refusal_of(const std::string& set) { return refusal(kSmallDeck, {set}); }

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

}  // namespace tessera::deck
