// What each rule of an optimizer does to one element, shared by every back end: their loops load a
// gradient, master weight and state, call the step and store. A rule is a struct like AdamStep and
// a line in with_step; one of two passes is two of them.
#pragma once

#include <type_traits>

#include "kernels/api/optimizer.hpp"
#include "kernels/common/math.hpp"
#include "kernels/common/types.hpp"

namespace tessera::kernels {

/// The learning rate of an update's elements.
TESSERA_INLINE float rate_of(const UpdateSettings& a, const float* scalars) {
  return scalars[static_cast<int>(StepScalar::lr)] * a.lr_factor;
}

struct AdamStep {
  static constexpr UpdateRule kRule = UpdateRule::adam;
  static constexpr int kStates = 2;  // m, v
  float one_minus_beta1, beta2, one_minus_beta2, eps, l2, keep, rate, scale2;

  /// `scalars` are the step's, by StepScalar. The last argument is trust_of, of second passes, or
  /// the product of a tensor's factors.
  TESSERA_INLINE AdamStep(const UpdateSettings& a, const float* scalars, float) {
    const float lr = rate_of(a, scalars);
    const bool decoupled = a.decay_kind == Decay::decoupled;
    one_minus_beta1 = 1.0F - a.beta1;
    beta2 = a.beta2;
    one_minus_beta2 = 1.0F - a.beta2;
    eps = a.eps;
    l2 = decoupled ? 0.0F : a.decay;
    keep = decoupled ? 1.0F - lr * a.decay : 1.0F;
    rate = -lr / scalars[static_cast<int>(StepScalar::bias_correction1)];
    scale2 = 1.0F / sqrt(scalars[static_cast<int>(StepScalar::bias_correction2)]);
  }

  /// `F` is a float or a vector of floats, as in math.hpp.
  template <typename F>
  TESSERA_INLINE void operator()(F gradient, F& master, F (&state)[kStates]) const {
    F &m = state[0], &v = state[1];
    const F g = fmadd(master, F(l2), gradient);
    m = fmadd(g - m, F(one_minus_beta1), m);
    v = fmadd(g * g, F(one_minus_beta2), v * F(beta2));
    const F deviation = fmadd(sqrt(v), F(scale2), F(eps));
    master = fmadd(m / deviation, F(rate), master * F(keep));
  }
};

/// LAMB's u of an element by its moments as they are kept: both passes compute the same bits.
struct LambDirection {
  float eps, decay;

  template <typename F>
  TESSERA_INLINE F operator()(F master, const F (&state)[2]) const {
    return fmadd(master, F(decay), state[0] / sqrt(state[1] + F(eps)));
  }
};

struct LambMoments {
  static constexpr UpdateRule kRule = UpdateRule::lamb_moments;
  static constexpr int kStates = 2;  // m, v
  float one_minus_beta1, beta2, one_minus_beta2;
  LambDirection direction;

  TESSERA_INLINE LambMoments(const UpdateSettings& a, const float*, float)
      : one_minus_beta1(1.0F - a.beta1),
        beta2(a.beta2),
        one_minus_beta2(1.0F - a.beta2),
        direction{a.eps, a.decay} {}

  template <typename F>
  TESSERA_INLINE void operator()(F g, F& /* master */, F (&state)[kStates]) const {
    F &m = state[0], &v = state[1];
    m = fmadd(g - m, F(one_minus_beta1), m);
    v = fmadd(g * g, F(one_minus_beta2), v * F(beta2));
  }
};

struct LambStep {
  static constexpr UpdateRule kRule = UpdateRule::lamb;
  static constexpr int kStates = 2;  // m, v
  float rate;
  LambDirection direction;

  TESSERA_INLINE LambStep(const UpdateSettings& a, const float* scalars, float trust)
      : rate(-rate_of(a, scalars) * trust), direction{a.eps, a.decay} {}

  template <typename F>
  TESSERA_INLINE void operator()(F /* gradient */, F& master, F (&state)[kStates]) const {
    master = fmadd(direction(master, state), F(rate), master);
  }
};

struct LionStep {
  static constexpr UpdateRule kRule = UpdateRule::lion;
  static constexpr int kStates = 1;  // m
  float one_minus_beta1, one_minus_beta2, keep, rate;

  TESSERA_INLINE LionStep(const UpdateSettings& a, const float* scalars, float) {
    one_minus_beta1 = 1.0F - a.beta1;
    one_minus_beta2 = 1.0F - a.beta2;
    rate = -rate_of(a, scalars);
    keep = fmadd(rate, a.decay, 1.0F);
  }

  template <typename F>
  TESSERA_INLINE void operator()(F g, F& master, F (&state)[kStates]) const {
    F& m = state[0];
    const F direction = sign(fmadd(g - m, F(one_minus_beta1), m));
    m = fmadd(g - m, F(one_minus_beta2), m);
    master = fmadd(direction, F(rate), master * F(keep));
  }
};

struct SgdStep {
  static constexpr UpdateRule kRule = UpdateRule::sgd;
  static constexpr int kStates = 1;  // m
  float momentum, of_gradient, of_moment, l2, rate;

  TESSERA_INLINE SgdStep(const UpdateSettings& a, const float* scalars, float) {
    momentum = a.beta1;
    of_gradient = a.nesterov ? 1.0F : 0.0F;
    of_moment = a.nesterov ? a.beta1 : 1.0F;
    l2 = a.decay;
    rate = -rate_of(a, scalars);
  }

  template <typename F>
  TESSERA_INLINE void operator()(F gradient, F& master, F (&state)[kStates]) const {
    F& m = state[0];
    const F g = fmadd(master, F(l2), gradient);
    m = fmadd(m, F(momentum), g);
    master = fmadd(fmadd(m, F(of_moment), g * F(of_gradient)), F(rate), master);
  }
};

struct MuonMoment {
  static constexpr UpdateRule kRule = UpdateRule::muon_moment;
  static constexpr int kStates = 1;  // m
  float one_minus_beta, of_moment;

  TESSERA_INLINE MuonMoment(const UpdateSettings& a, const float*, float)
      : one_minus_beta(1.0F - a.beta1), of_moment(a.nesterov ? a.beta1 : 1.0F) {}

  /// Returns the direction.
  template <typename F>
  TESSERA_INLINE F operator()(F g, F (&state)[kStates]) const {
    F& m = state[0];
    m = fmadd(g - m, F(one_minus_beta), m);
    return fmadd(m - g, F(of_moment), g);
  }
};

struct MuonStep {
  static constexpr UpdateRule kRule = UpdateRule::muon;
  static constexpr int kStates = 0;
  float rate, keep;

  TESSERA_INLINE MuonStep(const UpdateSettings& a, const float* scalars, float)
      : rate(-rate_of(a, scalars)), keep(fmadd(rate, a.decay, 1.0F)) {}

  template <typename F>
  TESSERA_INLINE void operator()(F direction, F& master) const {
    master = fmadd(direction, F(rate), master * F(keep));
  }
};

struct FrozenAdamStep {
  static constexpr UpdateRule kRule = UpdateRule::frozen_adam;
  static constexpr int kStates = 2;  // m, v
  float eps, keep, rate;

  TESSERA_INLINE FrozenAdamStep(const UpdateSettings& a, const float* scalars, float)
      : eps(a.eps), rate(-rate_of(a, scalars)) {
    keep = fmadd(rate, a.decay, 1.0F);
  }

  template <typename F>
  TESSERA_INLINE void operator()(F /* gradient */, F& master, F (&state)[kStates]) const {
    master = fmadd(state[0] / (sqrt(state[1]) + F(eps)), F(rate), master * F(keep));
  }
};

/// The second pass of LAMB, by factors that a tensor has in place of its ratio.
struct FrozenLambStep : LambStep {
  static constexpr UpdateRule kRule = UpdateRule::frozen_lamb;
  using LambStep::LambStep;
};

/// An average of weights after an update.
template <typename F>
TESSERA_INLINE F averaged(F average, F master, float decay) {
  return fmadd(master - average, F(1.0F - decay), average);
}

template <typename Step, typename F>
[[gnu::always_inline]] inline void call_with(F&& f) {
  static_assert(Step::kStates <= static_cast<int>(kMostStates), "raise kMostStates");
  f.template operator()<Step>();
}
/// `f.template operator()<Step>()` for the rule's step.
template <typename F>
[[gnu::always_inline]] inline void with_step(UpdateRule rule, F&& f) {
  switch (rule) {
    case UpdateRule::adam: call_with<AdamStep>(f); break;
    case UpdateRule::lamb_moments: call_with<LambMoments>(f); break;
    case UpdateRule::lamb: call_with<LambStep>(f); break;
    case UpdateRule::lion: call_with<LionStep>(f); break;
    case UpdateRule::sgd: call_with<SgdStep>(f); break;
    case UpdateRule::muon_moment: call_with<MuonMoment>(f); break;
    case UpdateRule::muon: call_with<MuonStep>(f); break;
    case UpdateRule::frozen_adam: call_with<FrozenAdamStep>(f); break;
    case UpdateRule::frozen_lamb: call_with<FrozenLambStep>(f); break;
  }
}

/// How many state tensors a rule keeps.
std::size_t state_count(UpdateRule rule);

/// What state becomes when it is kept as an `M`: bf16 is rounded at random, for what a step adds to
/// a moment is mostly less than half of the distance to the next bf16. `F` as above; `master` is
/// the weight after the step.
template <typename M, int S, typename F>
TESSERA_INLINE void round_state(F (&state)[S], F master, std::uint32_t salt) {
  if constexpr (!std::is_same_v<M, float>) {
    for (int s = 0; s < S; ++s)
      state[s] = rounded_at_random(state[s], master, salt + static_cast<std::uint32_t>(s));
  }
}

/// The step's salt of round_state: an element that nothing moves is rounded anew in each.
TESSERA_INLINE std::uint32_t salt_of(const float* scalars) {
  return mixed(std::bit_cast<std::uint32_t>(scalars[static_cast<int>(StepScalar::chance)]));
}

/// `f.template operator()<M>()` for the type that state is kept in.
template <typename F>
[[gnu::always_inline]] inline void with_state_type(DType type, F&& f) {
  if (type == DType::bf16) {
    f.template operator()<bf16>();
  } else {
    f.template operator()<float>();
  }
}

/// `f.template operator()<G>()` for the type of the gradient, f32 for a step that reads none.
template <typename Step, typename F>
[[gnu::always_inline]] inline void with_gradient_type(const OptimizerUpdate& a, F&& f) {
  if constexpr (reads_gradient(pass_of(Step::kRule))) {
    with_type(a.gradient.type, f);
  } else {
    f.template operator()<float>();
  }
}

}  // namespace tessera::kernels
