// The architecture of a model directory as keys of the deck.
#pragma once

#include <string>
#include <vector>

#include "deck/load.hpp"

namespace tessera::setup {

/// Reads config.json where model.init_from points; the reader that load_deck() wants.
std::vector<deck::ArchitectureKey> read_architecture(const std::string& directory);

}  // namespace tessera::setup
