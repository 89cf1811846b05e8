// The architecture of a model directory as keys of the deck.
#pragma once

#include <string>
#include <vector>

#include "deck/load.hpp"

namespace tessera::setup {

/// Reads config.json where model.init_from points; the reader that load_deck() wants. A deck that
/// says classes may do so of a directory without a head for them: then the head is a fresh one.
std::vector<deck::ArchitectureKey> read_architecture(const std::string& directory,
                                                     const deck::LoadedDeck& said);

}  // namespace tessera::setup
