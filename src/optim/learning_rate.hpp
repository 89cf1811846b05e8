// Learning-rate schedules: warm-up, then constant, linear, cosine (Loshchilov and Hutter 2017),
// warm-up-stable-decay (Hu et al. 2024), steps with gamma, or the inverse square root (Vaswani et
// al. 2017, equation 3, scaled so that its peak is the deck's rate).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "optim/timeline.hpp"

namespace tessera::optim {

class LearningRate {
 public:
  /// `run_steps` is the run's length. Lengths in tokens and epochs become updates where `timeline`
  /// says they are consumed: from the run's start for the warm-up, from the warm-up's end for decay
  /// and drops, or back from the run's end for the decay of wsd. By tokens, lengths in steps do so
  /// too: they stand for their share of the run's tokens.
  LearningRate(const deck::ScheduleSection& schedule, double lr, const Timeline& timeline,
               std::int64_t run_steps);

  /// Rate of applied update `update` (from 1). Warm-up of w: start + (lr - start) s / w, or,
  /// logarithmic with w >= 2, start + (lr - start) ln(s) / ln(w), where s is `update`, or by tokens
  /// what it has seen of the run's tokens, in steps of an average size.
  double at(std::int64_t update) const;
  /// Updates that the decay takes, whether the deck says so or it follows from the run's length.
  std::int64_t decay_steps() const { return decay_; }

  struct Turn {
    std::int64_t update = 0;
    std::string what;
  };
  /// Where the curve turns within the run: the last update of the warm-up, the last before the
  /// decay and the last of it, the first after drops: of the first `most` updates that follow some.
  std::vector<Turn> turns(std::int64_t most) const;

 private:
  Amount as_amount(std::int64_t steps) const;
  std::optional<Amount> amount_of(const std::optional<std::int64_t>& steps,
                                  const std::optional<std::int64_t>& tokens,
                                  const std::optional<double>& epochs) const;
  double seen(std::int64_t update) const;
  std::int64_t decay_begin() const;
  std::int64_t drops(std::int64_t update) const;
  std::int64_t before_drop(std::int64_t drop) const;

  deck::ScheduleSection schedule_;
  double lr_;
  Timeline timeline_;
  std::int64_t warmup_ = 0, decay_ = 0, run_ = 0;  // updates
  std::optional<Amount> drop_;  // between drops; nothing: schedule.step_size updates
  double tokens_ = 0;           // of the whole run
};

}  // namespace tessera::optim
