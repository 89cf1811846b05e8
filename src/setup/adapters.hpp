// What of a deck's adapters and frozen layers only the table of parameters knows.
#pragma once

#include <string>

#include "deck/load.hpp"

namespace tessera::setup {

/// Throws DeckError for a pattern of adapter.targets that no matrix matches.
void check_adapter_targets(const deck::LoadedDeck& loaded);
/// Throws DeckError for a pattern of frozen.layers that no layer matches, or if nothing is left to
/// train.
void check_frozen_layers(const deck::LoadedDeck& loaded);
/// How many parameters are trained and how many frozen, for people; empty where all are trained.
std::string adapter_text(const deck::Deck& deck);

}  // namespace tessera::setup
