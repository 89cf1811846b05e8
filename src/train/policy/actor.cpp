#include "train/policy/actor.hpp"

#include "setup/budget.hpp"
#include "train/guards/leave.hpp"

namespace tessera::train {

bool has_own_reference(const deck::Deck& deck) {
  if (!deck::draws_answers(deck.task.kind) || deck.task.kl == 0) return false;
  return deck.model.adapter.kind == deck::AdapterKind::none || open_init_from(deck).has_adapters();
}

std::size_t add_sample(data::StepTokens& step, const Said& said, const data::DocumentRule& rule) {
  const auto& [prompt, answer] = said;
  const std::size_t first = step.tokens.size(),
                    length = static_cast<std::size_t>(step.share.sequence),
                    count = prompt.size() + answer.size() - 1, target = first + prompt.size() - 1;
  TESSERA_CHECK(count <= length, "a prompt of {} and an answer of {} tokens in {}", prompt.size(),
                answer.size(), length);
  step.tokens.insert(step.tokens.end(), prompt.begin(), prompt.end());
  step.tokens.insert(step.tokens.end(), answer.begin(), answer.end() - 1);
  step.tokens.resize(first + length);
  step.targets.resize(first + length, -1);
  std::ranges::copy(answer, step.targets.begin() + static_cast<std::ptrdiff_t>(target));
  step.counted.push_back(std::ssize(answer));
  step.tallies.push_back(0);
  std::vector<std::int64_t> ends{static_cast<std::int64_t>(count)};
  rule.add_padding(ends, ends.front(), step.share.sequence);
  step.add_documents(ends, step.share.sequence);
  return target;
}

Actor::Actor(Run& run)
    : run_(run),
      documents_(data::document_rule(run.deck)),
      decoder_(*run.engine, run.job, setup::rollout_size(run.deck)),
      reference_deck_(setup::reference_deck(run.loaded)) {
  bool own_reference = false;
  run.control.together([&] { own_reference = has_own_reference(run.deck); });
  if (!own_reference) return;
  const plan::PlanShape shape =
      setup::score_shape(reference_deck_.deck, plan::Scores::losses, run.engine->batch_ranks());
  try {
    reference_.emplace(reference_deck_, run.job, shape, "master");
    plan::ArenaBytes both = run.engine->ledger().arenas;
    for (std::size_t i = 0; i < plan::kArenas; ++i)
      both[i] += reference_->engine().ledger().arenas[i];
    run.control.together(
        [&] { setup::check_budget(run.loaded, run.engine->inputs().layout.mesh, both); });
  } catch (MemoryError& e) {
    e.add_context("the reference model that task.kl compares with, beside the one that is trained");
    throw;
  }
}

std::vector<std::vector<float>> Actor::reference_losses(std::span<const Said> answers) {
  if (!reference_)
    return score(*run_.engine, setup::base_shape(run_.deck, run_.engine->batch_ranks()), answers);
  Engine& engine = reference_->engine();
  return score(engine,
               setup::score_shape(reference_deck_.deck, plan::Scores::losses, engine.batch_ranks()),
               answers);
}

std::vector<std::vector<float>> Actor::values(std::span<const Said> answers) {
  return score(*run_.engine,
               setup::score_shape(run_.deck, plan::Scores::values, run_.engine->batch_ranks()),
               answers);
}

std::vector<std::vector<float>> Actor::score(Engine& engine, const plan::PlanShape& shape,
                                             std::span<const Said> answers) const {
  std::vector<std::size_t> first;  // of each answer's tokens, among those of all
  std::size_t tokens = 0;
  for (const Said& said : answers)
    first.push_back(std::exchange(tokens, tokens + said.answer.size()));
  std::vector<float> all(tokens);
  const data::BatchShare share = engine.share(shape);
  const std::int64_t pass = share.data_ranks * share.micro_batches * share.micro;
  for (std::int64_t begin = 0; begin < std::ssize(answers); begin += pass) {
    data::StepTokens step{.first = begin, .share = share};
    std::vector<std::int64_t> which;  // answer, of each of this rank's samples
    for (std::int64_t k = 0; k < share.micro_batches; ++k) {
      for (std::int64_t b = 0; b < share.micro; ++b) {
        // Where there are no more answers the last one takes the place of others.
        which.push_back(std::min(begin + share.first_sample(k) + b, std::ssize(answers) - 1));
        step.samples.push_back(which.back());
        add_sample(step, answers[static_cast<std::size_t>(which.back())], documents_);
      }
    }
    step.keep_chunks(documents_.positions);
    std::span<const float> scores = or_leave_alone(
        run_.job, run_.directory, [&] { return engine.score(engine.prepared(shape), step); });
    if (scores.empty()) continue;
    share.each_row([&](std::int64_t sample, std::int64_t start, std::int64_t length) {
      const auto answer = static_cast<std::size_t>(at(which, sample));
      const Said& said = answers[answer];
      const std::int64_t said_at = std::ssize(said.prompt) - 1;
      const Range there =
          intersect({start, start + length}, {said_at, said_at + std::ssize(said.answer)});
      for (std::int64_t t = there.begin; t < there.end; ++t) {
        all[first[answer] + static_cast<std::size_t>(t - said_at)] =
            scores[static_cast<std::size_t>(t - start)];
      }
      scores = scores.subspan(static_cast<std::size_t>(length));
    });
  }
  run_.control.unite(all);
  std::vector<std::vector<float>> of_each;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const auto from = all.begin() + static_cast<std::ptrdiff_t>(first[i]);
    of_each.emplace_back(from, from + std::ssize(answers[i].answer));
  }
  return of_each;
}

}  // namespace tessera::train
