// Several directories of adapters over one model.
#pragma once

#include <span>
#include <string>

#include "deck/load.hpp"
#include "train/job.hpp"

namespace tessera::train {

/// Evaluates model.init_from over data.validation, and then with each of these directories of PEFT
/// beside it, which are of this model: it is read once, and stays where the deck keeps it; a line
/// for each on rank 0's stdout. Whatever the deck says of adapters is not asked. Ranks and factors
/// of directories may differ: in memory all have the largest rank. Collective. DeckError and
/// DataError, on every rank, for directories of another model, for DoRA beside what is none, or of
/// other matrices.
void evaluate_adapters(const deck::LoadedDeck& loaded, const Job& job,
                       std::span<const std::string> directories);

}  // namespace tessera::train
