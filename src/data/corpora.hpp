// The token files of a run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/mpi/control.hpp"
#include "deck/load.hpp"
#include "io/token_files.hpp"

namespace tessera::data {

/// A key of the deck that lists token files.
struct CorpusKey {
  const char* name = nullptr;
  std::vector<std::string> entries;  // of the deck: paths
  std::int64_t least = 1;            // sequences that are needed: of all, or of each entry
  bool apart = false;                // each entry is cut into sequences of its own
  bool trains = false;               // gradients come of it
};
CorpusKey training_key(const deck::Deck& deck);
CorpusKey validation_key(const deck::Deck& deck);

/// Throws DataError for files that cannot be used and where there are too few tokens.
std::unique_ptr<io::TokenCorpus> open_corpus(const deck::LoadedDeck& loaded, const CorpusKey& key);

// Collective. Throw DataError where there are too few tokens, CommError if ranks see different
// files, on every rank.
/// data.train: at least one sequence.
std::unique_ptr<io::TokenCorpus> open_training(const deck::LoadedDeck& loaded,
                                               const comm::Control& control);
/// data.validation: at least one batch; nullptr if the deck names none.
std::unique_ptr<io::TokenCorpus> open_validation(const deck::LoadedDeck& loaded,
                                                 const comm::Control& control);

}  // namespace tessera::data
