// Which parameters the deck's optimizer.groups have.
#pragma once

#include <string>

#include "deck/load.hpp"

namespace tessera::setup {

/// Throws DeckError where a group has no parameter, or two have the same.
void check_groups(const deck::LoadedDeck& loaded);

/// A table for people: of each group, and of what is in none, how many parameters and elements it
/// has and how they are updated. Empty where the deck has no groups.
std::string groups_text(const deck::Deck& deck);

}  // namespace tessera::setup
