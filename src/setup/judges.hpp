// Decks of the models by which what a model does is judged.
#pragma once

#include "deck/load.hpp"
#include "plan/ir/plan.hpp"

namespace tessera::setup {

/// The deck of the model that a run begins with, in full.
deck::LoadedDeck reference_deck(const deck::LoadedDeck& loaded);

/// The deck of reward.model, on the layout of the run and where its parameters live. DeckError
/// where the directory has no head that scores, sees fewer tokens than the run's sequences have, or
/// does not go with the layout.
deck::LoadedDeck reward_deck(const deck::LoadedDeck& loaded, std::int64_t ranks);

/// The deck of task.critic, whose kind is TaskKind::values: on the layout of the run, all of it
/// updated as the model that answers is, with task.critic_lr. DeckError as of reward_deck(); a
/// directory without a head that scores gets a new one.
deck::LoadedDeck critic_deck(const deck::LoadedDeck& loaded, std::int64_t ranks);

/// Whether the model that answers says itself which rewards are to come, beside tokens.
inline bool has_value_head(const deck::TaskSection& task) {
  return deck::has_values(task.kind) && !task.critic;
}

/// Of as many answers at once as a step has: `scores` of these.
plan::PlanShape score_shape(const deck::Deck& deck, plan::Scores scores, std::int64_t data_ranks);
/// Losses by what a model's adapters are beside.
plan::PlanShape base_shape(const deck::Deck& deck, std::int64_t data_ranks);

}  // namespace tessera::setup
