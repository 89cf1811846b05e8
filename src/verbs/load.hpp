// Loading a deck on all ranks.
#pragma once

#include "comm/mpi/control.hpp"
#include "deck/load.hpp"
#include "io/checkpoint_directory.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {

/// Rank 0 reads the deck; the others get the resolved text, so that all ranks agree even if the
/// file changes meanwhile.
/// A checkpoint or run directory in place of a deck stands for the deck it was made with, resumed
/// from there; with Layout::fitted on these ranks, whatever layout that was (train/fit_ranks).
enum class Layout : std::uint8_t { as_written, fitted };
struct DeckOnRanks {
  deck::LoadedDeck loaded;
  std::optional<io::HeldCheckpoint> checkpoint;  // on rank 0: that stands for the deck
};
DeckOnRanks load_on_all(const comm::Control& control, const DeckOptions& options,
                        Layout layout = Layout::as_written);

}  // namespace tessera::verbs
