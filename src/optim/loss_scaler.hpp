// Loss scaling for f16 (Micikevicius et al. 2018): dynamic, with a window and hysteresis, or fixed.
#pragma once

#include "deck/deck.hpp"

namespace tessera::optim {

/// What a checkpoint keeps of the scaler.
struct LossScaleState {
  double scale = 1;
  std::int64_t good_steps = 0;  // since the last overflow or doubling
  std::int64_t hysteresis = 0;  // overflows left before the scale is halved
};

class LossScaler {
 public:
  /// Types other than f16 keep a scale of 1 unless the deck fixes a number.
  explicit LossScaler(const deck::PrecisionSection& precision);

  double scale() const { return state_.scale; }
  /// The outcome of a step: halve after `hysteresis` overflows since the last good window, and at
  /// each one that follows (not below the minimum); double after `window` good steps.
  void update(bool overflow);
  /// Whether an overflow is no reason for concern: the scale is dynamic and can still become
  /// smaller.
  bool searching() const { return dynamic_ && state_.scale > minimum_; }

  const LossScaleState& state() const { return state_; }
  void restore(const LossScaleState& state) { state_ = state; }

 private:
  bool dynamic_ = false;
  std::int64_t window_, hysteresis_;
  double minimum_;
  LossScaleState state_;
};

}  // namespace tessera::optim
