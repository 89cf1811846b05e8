// How a job's ranks have the model that they generate with: a deck of its architecture, with the
// layout and the places that the user gives it.
#pragma once

#include "deck/load.hpp"
#include "train/generation/engine_decoder.hpp"
#include "verbs/generate/options.hpp"

namespace tessera::verbs {

/// Throws DeckError for --set keys that say nothing of a layout or of memory, that are wrong, or
/// that so many ranks cannot have.
deck::LoadedDeck generation_deck(const GenerateOptions& o, const ModelSource& source,
                                 std::int64_t ranks);

/// Of sequences of `most` tokens. Prompts go through the model side by side where parameters come
/// from elsewhere; pipeline stages pass sequences on in micro-batches, but where parameters are in
/// shards, which would be gathered for each. Where the bits are to be those of every layout,
/// neither.
train::DecoderSize decoder_size(const GenerateOptions& o, const deck::Deck& deck,
                                std::int64_t most);

}  // namespace tessera::verbs
