// Mean loss over validation data: between the steps of a run, and of a deck or checkpoint by
// itself.
#pragma once

#include "io/token_files.hpp"
#include "train/execution/engine.hpp"

namespace tessera::train {

struct Evaluation {
  double loss = 0;  // mean over the targets that count
  std::int64_t sequences = 0, targets = 0;
  double seconds = 0;
  struct Set {
    std::string path;  // the entry of data.validation
    double loss = 0;
    std::int64_t targets = 0;
  };
  std::vector<Set> sets;
};

/// Over the first evaluate.batches batches of each entry of `validation`, which holds at least one;
/// `engine` has
/// a plan of evaluation_shape. Nothing if some rank's `stop` says, before a batch, to give it up.
/// Collective. Throws DataError and IoError on every rank.
std::optional<Evaluation> evaluate(Engine& engine, const comm::Control& control,
                                   const deck::Deck& deck, const io::TokenCorpus& validation,
                                   const std::function<bool()>& stop);

/// Evaluates the state that run.resume names, a checkpoint whose model is the deck's, or else
/// model.init_from's weights. Throws DeckError where there is neither, DataError for weights that
/// are not finite and NonFiniteError for a loss that is not, unless model.accept_non_finite, on
/// every rank. Holds no more than parameters, and writes nothing but one line on rank 0's stdout,
/// so a training job may be at work in the run directory. Collective.
/// `weights`: the state of a checkpoint that is evaluated: "master", or optim::kEma, for which
/// there must be a checkpoint.
void evaluate_deck(const deck::LoadedDeck& loaded, const Job& job, std::string_view weights);

}  // namespace tessera::train
