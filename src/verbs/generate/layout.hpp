// How a job's ranks have the model that they generate with: a deck of its architecture, with the
// layout and the places that the user gives it.
#pragma once

#include "deck/load.hpp"
#include "verbs/generate/options.hpp"

namespace tessera::verbs {

/// Throws DeckError for --set keys that say nothing of a layout or of memory, that are wrong, or
/// that so many ranks cannot have.
deck::LoadedDeck generation_deck(const GenerateOptions& o, const ModelSource& source,
                                 std::int64_t ranks);

}  // namespace tessera::verbs
