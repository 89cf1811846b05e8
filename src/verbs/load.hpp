// Loading a deck on all ranks.
#pragma once

#include "comm/mpi/control.hpp"
#include "deck/load.hpp"
#include "io/checkpoint_directory.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {

/// How a deck is read on all ranks: rank 0 reads it, the others get the resolved text, so that all
/// agree even if the file changes meanwhile. A checkpoint or run directory may be given instead:
/// then it is the deck that made it, resumed from there. Layout::fitted: on these ranks, whatever
/// layout that was (train/state/fit_ranks).
enum class Layout : std::uint8_t { as_written, fitted };
struct DeckOnRanks {
  deck::LoadedDeck loaded;
  std::optional<io::HeldCheckpoint> checkpoint;  // on rank 0: the one that was given instead
};
DeckOnRanks load_on_all(const comm::Control& control, const DeckOptions& options,
                        Layout layout = Layout::as_written);

}  // namespace tessera::verbs
