#include "train/course.hpp"

namespace tessera::train {

Course::Course(const deck::Deck& deck)
    : scaler(deck.precision), deck_(deck), timeline_(deck.batch, 0) {}

void Course::set_data(std::int64_t sequences) {
  data_ = sequences;
  timeline_ = optim::Timeline(deck_.batch, sequences);
  set_length();
}

void Course::set_length() {
  steps_ = timeline_.run_steps(deck_.run, position());
  rate_.emplace(deck_.schedule, deck_.optimizer.lr, timeline_, steps_);
}

std::optional<Course::MovedRate> Course::rate_moved_by_length(const deck::Deck& before) const {
  const optim::Timeline timeline(before.batch, data_);
  const std::int64_t steps = timeline.run_steps(before.run, position());
  const auto rate_of = [&](std::int64_t run_steps) {
    return optim::LearningRate(before.schedule, before.optimizer.lr, timeline, run_steps);
  };
  const std::int64_t update = progress.applied + 1, step = progress.step + 1;
  const optim::LearningRate was = rate_of(steps);
  const auto lr_before = [&](std::int64_t of_update, std::int64_t of_step) {
    return progress.lr_factor * timeline.lr_scale(of_step) * was.at(of_update);
  };
  const MovedRate rates{.steps_before = steps,
                        .decay_before = was.decay_steps(),
                        .now = lr(update, step),
                        .before = lr_before(update, step)};
  const bool by_length = rate_of(steps_).at(update) != was.at(update);
  const bool goes_on = lr(update - 1, step - 1) == lr_before(update - 1, step - 1);
  return by_length && !goes_on && rates.now != rates.before ? std::optional(rates) : std::nullopt;
}

void Course::restore(const io::CheckpointHeader& h, const deck::Deck& saved) {
  progress = {.step = h.step,
              .applied = h.applied_updates,
              .critic_updates = h.critic_updates,
              .samples = h.samples,
              .tokens = h.tokens,
              .skipped = h.skipped_samples,
              .lr_factor = h.lr_factor};
  // A loss scale that was found for another type, or under another setting, means nothing now.
  if (saved.precision.compute == deck_.precision.compute &&
      saved.precision.loss_scale == deck_.precision.loss_scale) {
    scaler.restore({.scale = h.loss_scale,
                    .good_steps = h.scaler_good_steps,
                    .hysteresis = h.scaler_hysteresis_left});
  }
}

void Course::save_to(io::CheckpointHeader& h) const {
  h.step = progress.step;
  h.applied_updates = progress.applied;
  h.critic_updates = progress.critic_updates;
  h.samples = progress.samples;
  h.tokens = progress.tokens;
  h.loss_scale = scaler.state().scale;
  h.scaler_good_steps = scaler.state().good_steps;
  h.scaler_hysteresis_left = scaler.state().hysteresis;
  h.skipped_samples = progress.skipped;
  h.lr_factor = progress.lr_factor;
}

void Course::count_step(bool applied) {
  const std::int64_t step = ++progress.step;
  progress.samples += sequences(step);
  progress.tokens += timeline_.tokens(step);
  if (applied) ++progress.applied;
}

void Course::skip_to(std::int64_t samples) {
  progress.tokens += (samples - progress.samples) * sequence(progress.step + 1);
  progress.samples = samples;
}

}  // namespace tessera::train
