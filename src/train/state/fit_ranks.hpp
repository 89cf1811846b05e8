// A checkpoint's deck for another number of ranks: evaluating a model must not need as many ranks
// as training it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "deck/load.hpp"

namespace tessera::train {

/// Whether "section.key=value" sets this key.
bool sets_key(std::string_view set, std::string_view key);

/// A deck as a checkpoint holds it.
struct SavedDeck {
  std::string text;
  std::string name;  // for messages
};

struct FittedDeck {
  deck::LoadedDeck loaded;
  std::string note;  // the layout that was chosen in place of the deck's; empty: the deck's own
};

/// The deck, under `sets` of the user's, as `ranks` ranks can evaluate it: with the deck's tensor
/// and pipeline sizes if they fit, else with the nearest that do, and where that is not enough with
/// smaller micro-batches. What `sets` name is never changed. The same sequences are evaluated, and
/// in layout mode the loss has the same bits: its micro-batches stay. Throws DeckError, with what
/// would do, where nothing fits.
FittedDeck fit_to_ranks(const SavedDeck& saved, std::span<const std::string> sets,
                        std::int64_t ranks);

}  // namespace tessera::train
