#include "optim/loss_scaler.hpp"

#include <algorithm>
#include <cmath>

namespace tessera::optim {

LossScaler::LossScaler(const deck::PrecisionSection& p)
    : window_(p.loss_scale_window),
      hysteresis_(p.loss_scale_hysteresis),
      minimum_(p.loss_scale_min) {
  state_.hysteresis = hysteresis_;
  if (const auto* fixed = std::get_if<double>(&p.loss_scale)) {
    state_.scale = *fixed;
  } else if (p.compute == deck::Precision::f16) {
    dynamic_ = true;
    state_.scale = std::ldexp(1.0, static_cast<int>(p.loss_scale_power));
  }
}

void LossScaler::update(bool overflow) {
  if (!dynamic_) return;
  if (overflow) {
    state_.good_steps = 0;
    if (--state_.hysteresis <= 0) {
      state_.scale = std::max(minimum_, state_.scale / 2);
    }
  } else if (++state_.good_steps >= window_) {
    state_.good_steps = 0;
    state_.hysteresis = hysteresis_;
    state_.scale *= 2;
  }
}

}  // namespace tessera::optim
