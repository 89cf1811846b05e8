// The shapes of the steps that a deck asks for.
#pragma once

#include <span>
#include <vector>

#include "deck/deck.hpp"
#include "plan/ir/plan.hpp"

namespace tessera::setup {

struct StepSize {
  std::int64_t global = 0, sequence = 0;  // sequences, and the tokens of each
};
/// Of a step of training; where data.train is a mixture each of its corpora has a tally.
plan::PlanShape training_shape(const deck::Deck& deck, plan::PlanPurpose purpose,
                               const StepSize& size, std::int64_t data_ranks);
/// Evaluation cuts the first step's batch, always with sequences of batch.sequence tokens, so that
/// its losses compare.
plan::PlanShape evaluation_shape(const deck::BatchSection& batch, std::int64_t data_ranks);
/// Whether a step's plan copies the state for a checkpoint that is written beside the next ones.
bool saves_beside_steps(const deck::Deck& deck);
/// Whether the plan itself writes some of it: what lives on disks, for which there is no room in
/// memory, goes into the checkpoint as its updates leave it.
bool saves_with_updates(const deck::Deck& deck);

/// The shapes of all plans that a training run will use, those of training first. The first is
/// that of the first step with the run's longest sequences, which most steps have.
std::vector<plan::PlanShape> training_shapes(const deck::Deck& deck, std::int64_t data_ranks);
/// Of these, one of which needs most memory: for each, there is one that has no smaller extent.
std::vector<plan::PlanShape> largest_shapes(std::span<const plan::PlanShape> shapes);

}  // namespace tessera::setup
