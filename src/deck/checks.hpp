// Conditions that tie several keys together. Each assumes that its keys are well-formed and is
// skipped where they are not.
#pragma once

#include "deck/load.hpp"
#include "deck/problems.hpp"

namespace tessera::deck {

/// Everything that can be said without knowing the number of ranks; values that this version cannot
/// serve come last.
void check_deck(const LoadedDeck& loaded, Problems& problems);

}  // namespace tessera::deck
