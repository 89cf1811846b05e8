// One element's update by Adam, shared by every back end.
#pragma once

#include "kernels/api/optimizer.hpp"
#include "kernels/common/math.hpp"

namespace tessera::kernels {

/// What an update multiplies with, from the call's settings and the step's scalars.
struct AdamNumbers {
  float coefficient, one_minus_beta1, beta2, one_minus_beta2, eps, l2, keep, rate, scale2;
};

struct AdamSettings {
  float beta1, beta2, eps, decay;
  AdamUpdate::Decay decay_kind;
};

TESSERA_INLINE AdamNumbers adam_numbers(const AdamSettings& a, const float* scalars,
                                        const float* verdict) {
  const float lr = scalars[static_cast<int>(StepScalar::lr)];
  const bool decoupled = a.decay_kind == AdamUpdate::Decay::decoupled;
  return {.coefficient = verdict[static_cast<int>(VerdictField::coefficient)],
          .one_minus_beta1 = 1.0F - a.beta1,
          .beta2 = a.beta2,
          .one_minus_beta2 = 1.0F - a.beta2,
          .eps = a.eps,
          .l2 = decoupled ? 0.0F : a.decay,
          .keep = decoupled ? 1.0F - lr * a.decay : 1.0F,
          .rate = -lr / scalars[static_cast<int>(StepScalar::bias_correction1)],
          .scale2 = 1.0F / sqrt(scalars[static_cast<int>(StepScalar::bias_correction2)])};
}

/// `F` is a float or a vector of floats, as in math.hpp.
template <typename F>
TESSERA_INLINE void adam_step(const AdamNumbers& k, F gradient, F& master, F& m, F& v) {
  const F g = fmadd(master, F(k.l2), gradient * F(k.coefficient));
  m = fmadd(g - m, F(k.one_minus_beta1), m);
  v = fmadd(g * g, F(k.one_minus_beta2), v * F(k.beta2));
  const F deviation = fmadd(sqrt(v), F(k.scale2), F(k.eps));
  master = fmadd(m / deviation, F(k.rate), master * F(k.keep));
}

}  // namespace tessera::kernels
