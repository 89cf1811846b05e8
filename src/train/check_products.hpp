// Whether a deck's matrix products can be what precision.matmul asks for: known without a GPU.
#pragma once

#include <vector>

#include "deck/load.hpp"

namespace tessera::train {

/// Throws DeckError where precision.matmul is fp8 and an extent of a product of the blocks, on any
/// tensor rank, is not a multiple of kernels::kFp8Granule.
void check_products(const deck::LoadedDeck& loaded);

/// Of deck::legal_micros those that check_products takes, where it takes the deck.
std::vector<std::int64_t> legal_micros(const deck::LoadedDeck& loaded, std::int64_t ranks);

/// Throws DeckError where the deck cannot be run on so many ranks: deck::check_ranks, and products.
void check_on_ranks(const deck::LoadedDeck& loaded, std::int64_t ranks);

}  // namespace tessera::train
