// Loading a deck on all ranks.
#pragma once

#include "comm/mpi/mpi_group.hpp"
#include "deck/load.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {

/// Rank 0 reads the deck; the others get the resolved text, so that all ranks agree even if the
/// file changes meanwhile.
/// A checkpoint or run directory in place of a deck stands for the deck it was made with, resumed
/// from there.
deck::LoadedDeck load_on_all(const comm::Control& control, const DeckOptions& options);

}  // namespace tessera::verbs
