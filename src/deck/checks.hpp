// Conditions that tie several keys together. Each assumes that its keys are well-formed and is
// skipped where they are not.
#pragma once

#include "deck/load.hpp"
#include "deck/problems.hpp"

namespace tessera::deck {

/// All checks that do not need the number of ranks. Values that this version cannot serve are
/// reported last.
void check_deck(const LoadedDeck& loaded, Problems& problems);

}  // namespace tessera::deck
