// The token files of a run.
#pragma once

#include <memory>

#include "comm/mpi/mpi_group.hpp"
#include "deck/load.hpp"
#include "io/token_files.hpp"

namespace tessera::train {

// Collective. Throw DataError where there are too few tokens, CommError if ranks see different
// files, on every rank.
/// data.train: at least one sequence.
std::unique_ptr<TokenCorpus> open_training(const deck::LoadedDeck& loaded,
                                           const comm::Control& control);
/// data.validation: at least one batch; nullptr if the deck names none.
std::unique_ptr<TokenCorpus> open_validation(const deck::LoadedDeck& loaded,
                                             const comm::Control& control);

}  // namespace tessera::train
