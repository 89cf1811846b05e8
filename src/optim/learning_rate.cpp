#include "optim/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/bytes.hpp"

namespace tessera::optim {

/// A length in steps as its share of the run's tokens; one that no run reaches as such a one.
Amount LearningRate::as_amount(std::int64_t steps) const {
  constexpr double kForever = 0x1p60;  // so that sums of two such lengths fit 64 bits
  const double share = static_cast<double>(steps) / static_cast<double>(run_);
  return Timeline::of_tokens(std::llround(std::min(share * tokens_, kForever)));
}

/// Of a length of which one form is given: what is consumed by then. Nothing for a length in
/// updates.
std::optional<Amount> LearningRate::amount_of(const std::optional<std::int64_t>& steps,
                                              const std::optional<std::int64_t>& tokens,
                                              const std::optional<double>& epochs) const {
  if (tokens) return Timeline::of_tokens(*tokens);
  if (epochs) return timeline_.of_epochs(*epochs);
  if (steps && schedule_.by == deck::ScheduleBy::tokens) return as_amount(*steps);
  return std::nullopt;
}

LearningRate::LearningRate(const deck::ScheduleSection& s, double lr, const Timeline& timeline,
                           std::int64_t run_steps)
    : schedule_(s),
      lr_(lr),
      timeline_(timeline),
      run_(run_steps),
      tokens_(static_cast<double>(timeline.tokens_after(run_steps))) {
  if (const auto amount = amount_of(s.warmup_steps, s.warmup_tokens, s.warmup_epochs)) {
    warmup_ = timeline.steps_for(*amount);
  } else {
    warmup_ = s.warmup_steps.value_or(0);
  }
  // Where steps grow, how many of them consume an amount depends on where they lie.
  if (const auto amount = amount_of(s.decay_steps, s.decay_tokens, s.decay_epochs)) {
    const auto [count, of] = *amount;
    decay_ = s.kind == deck::ScheduleKind::wsd
                 ? run_ - timeline.steps_for({timeline.after(run_, of) - count, of})
                 : timeline.steps_for({timeline.after(warmup_, of) + count, of}) - warmup_;
  } else {
    decay_ = s.decay_steps.value_or(std::max<std::int64_t>(0, run_ - warmup_));
  }
  decay_ = std::min(decay_, std::int64_t{1} << 62);  // its end is a step too
  if (s.kind == deck::ScheduleKind::step)
    drop_ = amount_of(s.step_size, std::nullopt, s.step_epochs);
}

/// What the curve runs over.
double LearningRate::seen(std::int64_t update) const {
  if (schedule_.by == deck::ScheduleBy::steps) return static_cast<double>(update);
  return static_cast<double>(timeline_.tokens_after(update)) / tokens_ * static_cast<double>(run_);
}

/// The last update before the decay.
std::int64_t LearningRate::decay_begin() const {
  return schedule_.kind == deck::ScheduleKind::wsd ? std::max(warmup_, run_ - decay_) : warmup_;
}

/// How often the rate of kind step has dropped before update `update`: as StepLR of PyTorch has it,
/// after each full step since the warm-up.
std::int64_t LearningRate::drops(std::int64_t update) const {
  const std::int64_t done = std::max<std::int64_t>(0, update - 1 - warmup_);
  if (!drop_) return done / schedule_.step_size.value_or(1);
  return (timeline_.after(warmup_ + done, drop_->of) - timeline_.after(warmup_, drop_->of)) /
         std::max<std::int64_t>(1, drop_->count);
}

/// The last update before a drop, of which the first is 1.
std::int64_t LearningRate::before_drop(std::int64_t drop) const {
  if (!drop_) return warmup_ + drop * schedule_.step_size.value_or(1);
  return timeline_.steps_for(
      {timeline_.after(warmup_, drop_->of) + drop * drop_->count, drop_->of});
}

std::vector<LearningRate::Turn> LearningRate::turns(std::int64_t most) const {
  std::vector<Turn> all;
  const auto add = [&](std::int64_t update, std::string what) {
    if (update > 0 && update <= run_) all.push_back({update, std::move(what)});
  };
  add(warmup_, "the warm-up ends");
  switch (schedule_.kind) {
    case deck::ScheduleKind::constant:
    case deck::ScheduleKind::inverse_sqrt: break;
    case deck::ScheduleKind::step:
      for (std::int64_t drop = 1, rows = 0; rows < most && drop <= drops(run_); ++rows) {
        const std::int64_t update = before_drop(drop) + 1, count = drops(update) + 1 - drop;
        add(update, count == 1 ? "a drop" : count_text(count, "drop"));
        drop += count;
      }
      break;
    case deck::ScheduleKind::linear:
    case deck::ScheduleKind::cosine:
    case deck::ScheduleKind::wsd:
      if (decay_begin() > warmup_) add(decay_begin(), "the decay follows");
      if (decay_ > 0 && decay_ <= run_ - decay_begin())
        add(decay_begin() + decay_, "the decay ends");
  }
  return all;
}

double LearningRate::at(std::int64_t update) const {
  const double s = seen(update), w = seen(warmup_);
  if (update < warmup_) {
    const bool log = schedule_.warmup == deck::Warmup::log && w >= 2;
    const double part = log ? std::log(std::max(1.0, s)) / std::log(w) : s / w;
    return schedule_.warmup_start_lr + (lr_ - schedule_.warmup_start_lr) * part;
  }
  // Position in the decay; 1 at its end and beyond.
  const auto decayed = [&] {
    const std::int64_t from = decay_begin();
    if (update <= from) return 0.0;
    return decay_ == 0 ? 1.0 : std::min(1.0, (s - seen(from)) / (seen(from + decay_) - seen(from)));
  };
  const double span = lr_ - schedule_.min_lr;
  switch (schedule_.kind) {
    case deck::ScheduleKind::constant: return lr_;
    case deck::ScheduleKind::linear:
    case deck::ScheduleKind::wsd: return lr_ - span * decayed();
    case deck::ScheduleKind::cosine:
      return schedule_.min_lr + span * 0.5 * (1.0 + std::cos(std::numbers::pi * decayed()));
    case deck::ScheduleKind::step:
      return std::max(schedule_.min_lr, lr_ * std::pow(schedule_.gamma, drops(update)));
    case deck::ScheduleKind::inverse_sqrt:
      return std::max(schedule_.min_lr, lr_ * std::sqrt(std::min(1.0, std::max(1.0, w) / s)));
  }
  return lr_;
}

}  // namespace tessera::optim
