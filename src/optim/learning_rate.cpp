#include "optim/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/bytes.hpp"

namespace tessera::optim {
namespace {

/// A length in tokens or epochs, as sequences.
std::optional<std::int64_t> samples_of(const std::optional<std::int64_t>& tokens,
                                       const std::optional<double>& epochs,
                                       const Timeline& timeline) {
  if (tokens) return timeline.samples_of_tokens(*tokens);
  if (epochs) return timeline.samples_of_epochs(*epochs);
  return std::nullopt;
}

}  // namespace

LearningRate::LearningRate(const deck::ScheduleSection& s, double lr, const Timeline& timeline,
                           std::int64_t run_steps)
    : schedule_(s), lr_(lr), timeline_(timeline), run_(run_steps) {
  if (s.warmup_steps) {
    warmup_ = *s.warmup_steps;
  } else if (const auto samples = samples_of(s.warmup_tokens, s.warmup_epochs, timeline)) {
    warmup_ = timeline.steps_for_samples(*samples);
  }
  // Where the batch grows, how many steps a number of samples takes depends on where they lie.
  if (s.decay_steps) {
    decay_ = *s.decay_steps;
  } else if (const auto samples = samples_of(s.decay_tokens, s.decay_epochs, timeline)) {
    decay_ = s.kind == deck::ScheduleKind::wsd
                 ? run_ - timeline.steps_for_samples(timeline.samples_after(run_) - *samples)
                 : timeline.steps_for_samples(timeline.samples_after(warmup_) + *samples) - warmup_;
  } else {
    decay_ = std::max<std::int64_t>(0, run_ - warmup_);
  }
  if (s.kind == deck::ScheduleKind::step && s.step_epochs)
    drop_samples_ = timeline.samples_of_epochs(*s.step_epochs);
}

/// The last update before the decay.
std::int64_t LearningRate::decay_begin() const {
  return schedule_.kind == deck::ScheduleKind::wsd ? std::max(warmup_, run_ - decay_) : warmup_;
}

/// How often the rate of kind step has dropped before update `update`: as StepLR of PyTorch has it,
/// after each full step since the warm-up.
std::int64_t LearningRate::drops(std::int64_t update) const {
  const std::int64_t done = std::max<std::int64_t>(0, update - 1 - warmup_);
  if (drop_samples_ == 0) return done / schedule_.step_size.value_or(1);
  return (timeline_.samples_after(warmup_ + done) - timeline_.samples_after(warmup_)) /
         drop_samples_;
}

/// The last update before a drop, of which the first is 1.
std::int64_t LearningRate::before_drop(std::int64_t drop) const {
  if (drop_samples_ == 0) return warmup_ + drop * schedule_.step_size.value_or(1);
  return timeline_.steps_for_samples(timeline_.samples_after(warmup_) + drop * drop_samples_);
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
  const auto s = static_cast<double>(update), w = static_cast<double>(warmup_);
  if (update < warmup_) {
    const bool log = schedule_.warmup == deck::Warmup::log && warmup_ >= 2;
    const double part = log ? std::log(s) / std::log(w) : s / w;
    return schedule_.warmup_start_lr + (lr_ - schedule_.warmup_start_lr) * part;
  }
  // Position in the decay; 1 at its end and beyond.
  const auto decayed = [&] {
    const std::int64_t from = decay_begin();
    if (update <= from) return 0.0;
    return decay_ == 0
               ? 1.0
               : std::min(1.0, static_cast<double>(update - from) / static_cast<double>(decay_));
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
      return std::max(schedule_.min_lr, lr_ * std::sqrt(std::max(1.0, w) / s));
  }
  return lr_;
}

}  // namespace tessera::optim
