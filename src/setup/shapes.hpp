// The shapes of the steps that a deck asks for.
#pragma once

#include <vector>

#include "deck/deck.hpp"
#include "plan/ir/plan.hpp"

namespace tessera::setup {

/// The plan of a step of `global` sequences.
plan::PlanShape plan_shape(const deck::BatchSection& batch, plan::PlanPurpose purpose,
                           std::int64_t global, std::int64_t data_ranks);
/// Evaluation cuts the first step's batch.
plan::PlanShape evaluation_shape(const deck::BatchSection& batch, std::int64_t data_ranks);
/// Whether a step's plan copies the state for a checkpoint that is written beside the next ones.
bool saves_beside_steps(const deck::Deck& deck);
/// Whether the plan itself writes some of it: what lives on disks, for which there is no room in
/// memory, goes into the checkpoint as its updates leave it.
bool saves_with_updates(const deck::Deck& deck);

/// The shapes of all plans that a training run will use, those of training first.
std::vector<plan::PlanShape> training_shapes(const deck::Deck& deck, std::int64_t data_ranks);

}  // namespace tessera::setup
