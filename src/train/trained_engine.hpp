// A trained model that is evaluated by itself, beside no training.
#pragma once

#include <optional>
#include <string>

#include "deck/load.hpp"
#include "train/execution/engine.hpp"
#include "train/state/starting_state.hpp"

namespace tessera::train {

class TrainedEngine {
 public:
  /// An engine for this shape, which is of evaluation, with the state that run.resume names, a
  /// checkpoint whose model is the deck's, or else model.init_from's weights. Holds no more than
  /// parameters. `weights`: the state of a checkpoint that is meant: "master", or optim::kEma, for
  /// which there must be a checkpoint. Collective. Throws DeckError where there is no state, and
  /// DataError for weights that are not finite, unless model.accept_non_finite, on every rank.
  TrainedEngine(const deck::LoadedDeck& loaded, const Job& job, const plan::PlanShape& shape,
                std::string_view weights);

  Engine& engine() { return engine_; }
  /// For people: "runs/gpt/checkpoints/step_00000100 at step 100".
  const std::string& name() const { return name_; }
  /// Throws NonFiniteError on every rank for a loss that says nothing, unless
  /// model.accept_non_finite. Collective.
  void check_loss(double loss) const;

 private:
  const deck::Deck& deck_;
  const comm::Control& control_;
  Engine engine_;
  std::string name_;
};

/// Tells people something, from rank 0.
void remark(const comm::Control& control, const std::string& line);

}  // namespace tessera::train
