// Whether a deck fits a number of ranks, and how it cuts layers over them.
#pragma once

#include <cstdint>
#include <vector>

#include "deck/load.hpp"

namespace tessera::deck {

/// Into how many chunks the matrices of layers are cut over all tensor ranks.
std::int64_t tensor_chunks(const Deck& deck);

/// Into how many shares each sequence is cut over context ranks (plan::ContextInputs); 1: it is
/// whole.
std::int64_t context_shares(const Deck& deck);
/// Into how many equal chunks that are: two a share; 1: it is whole.
std::int64_t context_chunks(const Deck& deck);

/// Whether heads can be divided over context ranks: an equal part of the kv heads of each chunk of
/// layers for each.
bool heads_divide(const Deck& deck);

/// How context ranks compute attention, where the deck leaves it open as well: heads where they
/// divide and are sent in fewer bytes, forward and backward together, than keys and values of all
/// tokens. Of n ranks heads take 6 (q + kv) (n - 1) / n numbers of the compute type for each token
/// and layer, where there are q and kv columns; keys and values 4 kv (n - 1), and as gradients 2 kv
/// (n - 1) of f32.
ContextKind context_kind(const Deck& deck);

/// Throws DeckError unless `ranks` ranks form the deck's mesh and every global batch divides evenly
/// over it.
void check_ranks(const LoadedDeck& loaded, std::int64_t ranks);

/// Throws DeckError where zero.quantize or zero.secondary ask for something that has no effect on a
/// training run of `ranks` ranks, which form the deck's mesh: nothing of that kind travels there.
/// Those who only read a model do not ask.
void check_quantized(const LoadedDeck& loaded, std::int64_t ranks);

/// All values of batch.micro with which a deck that fits `ranks` ranks still does, ascending.
std::vector<std::int64_t> legal_micros(const LoadedDeck& loaded, std::int64_t ranks);

}  // namespace tessera::deck
