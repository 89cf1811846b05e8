#include "train/policy/critic.hpp"

#include <cmath>

#include "setup/judges.hpp"
#include "setup/shapes.hpp"
#include "train/policy/beside.hpp"

namespace tessera::train {

Critic::Critic(Run& run) : run_(run) {
  run.control.together([&] { deck_ = setup::critic_deck(run.loaded, run.control.size()); });
  course_.emplace(deck_.deck);
  course_->set_data(std::ssize(run.prompts->all) * run.deck.rollout.samples);
  const std::int64_t ranks = run.engine->batch_ranks();
  std::vector<plan::PlanShape> shapes = setup::training_shapes(deck_.deck, ranks);
  shapes.push_back(setup::score_shape(run.deck, plan::Scores::values, ranks));
  try {
    engine_.emplace(deck_, run.job, shapes);
    take_memory_beside(run, engine_->ledger().arenas);
  } catch (Error& e) {
    e.add_context("the critic");
    throw;
  }
  engine_->tune(run.directory, false,
                [&](const std::string& line) { run.log.say("kernels   critic: " + line); });
  run.engine->take_along(*engine_, "critic.");
}

std::vector<std::string> Critic::begin() {
  std::vector<std::string> notes = set_initial_state(deck_.deck, run_.control, engine_->state());
  for (std::string& note : notes) note = "critic: " + note;
  return notes;
}

std::vector<std::vector<float>> Critic::values(std::span<const Said> answers) {
  return scores_of(
      answers,
      {*engine_, setup::score_shape(run_.deck, plan::Scores::values, engine_->batch_ranks()),
       data::document_rule(run_.deck)},
      run_);
}

double Critic::learning_rate() {
  course_->progress = run_.course.progress;
  course_->set_length();
  return course_->lr(course_->progress.critic_updates + 1, course_->progress.step + 1);
}

Critic::Step Critic::train(plan::PlanPurpose purpose, const data::StepTokens& tokens,
                           const Executor::SaveTile& save) {
  const std::int64_t step = run_.course.progress.step + 1;
  const PreparedPlan& prepared = engine_->prepared(setup::training_shape(
      deck_.deck, purpose,
      {.global = run_.course.sequences(step), .sequence = run_.course.sequence(step)},
      engine_->batch_ranks()));
  const auto all_targets = static_cast<double>(plan::targets_of(prepared.plan()));
  StepInput input;
  input[kernels::StepScalar::loss_gradient] = static_cast<float>(1 / all_targets);
  input[kernels::StepScalar::unscale] = 1;
  input[kernels::StepScalar::lr] = static_cast<float>(learning_rate());
  std::int64_t& updates = run_.course.progress.critic_updates;
  engine_->inputs().optimizer.set_scalars(input.scalars, updates + 1);
  const StepOutput output = engine_->run(prepared, input, tokens, {.save = save});
  if (output.applied) ++updates;
  return {.loss = output.losses().mean(),
          .grad_norm = std::sqrt(output.sum(plan::WordLayout::norm)) *
                       (all_targets / static_cast<double>(output.targets())),
          .applied = output.applied,
          .times = output.times};
}

}  // namespace tessera::train
