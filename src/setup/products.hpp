// Whether a deck can be run on so many ranks, as far as that is known without plans and without a
// GPU; of its matrix products, whether they can be what precision.matmul asks for.
#pragma once

#include <string>
#include <vector>

#include "deck/load.hpp"

namespace tessera::setup {

/// Throws DeckError where precision.matmul is fp8 and an extent of a product of the blocks, on any
/// tensor rank, is not a multiple of kernels::kFp8Granule.
void check_products(const deck::LoadedDeck& loaded);

/// The type that is computed in, and that of matrix products where it is another: "f32", "f32 with
/// tf32 products".
std::string types_text(const deck::PrecisionSection& precision);

/// Of deck::legal_micros those that check_products takes, where it takes the deck, and that do not
/// separate pairs of samples.
std::vector<std::int64_t> runnable_micros(const deck::LoadedDeck& loaded, std::int64_t ranks);

/// Throws DeckError where the deck cannot be run on so many ranks: deck::check_ranks, products and
/// groups.
void check_on_ranks(const deck::LoadedDeck& loaded, std::int64_t ranks);

}  // namespace tessera::setup
