#include "train/policy/actor.hpp"

#include "setup/judges.hpp"
#include "train/policy/beside.hpp"

namespace tessera::train {

bool has_own_reference(const deck::Deck& deck) {
  if (!deck::draws_answers(deck.task.kind) || deck.task.kl == 0) return false;
  return deck.model.adapter.kind == deck::AdapterKind::none || open_init_from(deck).has_adapters();
}

Actor::Actor(Run& run)
    : run_(run),
      documents_(data::document_rule(run.deck)),
      decoder_(*run.engine, run.job, setup::rollout_size(run.deck), run.directory),
      reference_deck_(setup::reference_deck(run.loaded)) {
  bool own_reference = false;
  run.control.together([&] { own_reference = has_own_reference(run.deck); });
  if (!own_reference) return;
  open_beside(reference_, run, reference_deck_, plan::Scores::losses,
              "the reference model, which task.kl compares with");
}

std::vector<std::vector<float>> Actor::reference_losses(std::span<const Said> answers) {
  const std::int64_t ranks = run_.engine->batch_ranks();
  if (!reference_)
    return scores_of(answers, {*run_.engine, setup::base_shape(run_.deck, ranks), documents_},
                     run_);
  return scores_of(answers,
                   {reference_->engine(),
                    setup::score_shape(run_.deck, plan::Scores::losses, ranks), documents_},
                   run_);
}

std::vector<std::vector<float>> Actor::values(std::span<const Said> answers) {
  return scores_of(
      answers,
      {*run_.engine,
       setup::score_shape(run_.deck, plan::Scores::values, run_.engine->batch_ranks()), documents_},
      run_);
}

}  // namespace tessera::train
