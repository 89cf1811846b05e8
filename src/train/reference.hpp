// What the reference model says of pairs of answers, before a run compares them.
#pragma once

#include "deck/load.hpp"
#include "train/job.hpp"

namespace tessera::train {

/// Computes log p of every document of data.train and data.validation under the model of
/// model.init_from, a sum over the targets that count, and writes them into the file that
/// task.reference names (io/log_probabilities.hpp). In layout mode the bits are the same on every
/// layout. Collective. Throws DeckError where the deck compares no pairs, and as TrainedEngine and
/// check_pairs() do, on every rank.
void write_reference(const deck::LoadedDeck& loaded, const Job& job);

}  // namespace tessera::train
