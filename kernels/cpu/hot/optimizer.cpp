#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

struct AdamNumbers {
  float coefficient, beta1, beta2, eps, l2, keep, rate, scale2;
};

AdamNumbers adam_numbers(const AdamUpdate& a) {
  const auto* scalar = reinterpret_cast<const float*>(a.scalars.data);
  const auto* verdict = reinterpret_cast<const float*>(a.verdict.data);
  const float lr = scalar[static_cast<int>(StepScalar::lr)];
  const bool decoupled = a.decay_kind == AdamUpdate::Decay::decoupled;
  return {.coefficient = verdict[static_cast<int>(VerdictField::coefficient)],
          .beta1 = a.beta1,
          .beta2 = a.beta2,
          .eps = a.eps,
          .l2 = decoupled ? 0.0F : a.decay,
          .keep = decoupled ? 1.0F - lr * a.decay : 1.0F,
          .rate = -lr / scalar[static_cast<int>(StepScalar::bias_correction1)],
          .scale2 = 1.0F / __builtin_sqrtf(scalar[static_cast<int>(StepScalar::bias_correction2)])};
}

template <typename G, typename P>
void update(const AdamUpdate& a, Range elements) {
  const AdamNumbers k = adam_numbers(a);
  const std::int64_t first = elements.begin;
  const G* gradient = row_of<G>(a.gradient, 0) + first;
  float* master = row_of<float>(a.master, 0) + first;
  float* m = row_of<float>(a.m, 0) + first;
  float* v = row_of<float>(a.v, 0) + first;
  P* parameter = a.parameter.data == nullptr ? nullptr : row_of<P>(a.parameter, 0) + first;
  for_vectors(elements.end - first, [&](std::int64_t i, std::int64_t count) {
    const Vec w = load(master + i, count);
    const Vec g = fmadd(w, Vec(k.l2), load(gradient + i, count) * Vec(k.coefficient));
    const Vec m_old = load(m + i, count);
    const Vec m_new = fmadd(g - m_old, Vec(1.0F - k.beta1), m_old);
    const Vec v_new = fmadd(g * g, Vec(1.0F - k.beta2), load(v + i, count) * Vec(k.beta2));
    const Vec deviation = fmadd(sqrt(v_new), Vec(k.scale2), Vec(k.eps));
    const Vec w_new = fmadd(m_new / deviation, Vec(k.rate), w * Vec(k.keep));
    store(m + i, m_new, count);
    store(v + i, v_new, count);
    store(master + i, w_new, count);
    if (parameter != nullptr) store(parameter + i, w_new, count);
  });
}

}  // namespace

void adam(const AdamUpdate& a, Range elements) {
  const auto* verdict = reinterpret_cast<const float*>(a.verdict.data);
  if (verdict[static_cast<int>(VerdictField::apply)] == 0.0F) return;
  with_type(a.gradient.type, [&]<typename G>() {
    with_type(a.parameter.type, [&]<typename P>() { update<G, P>(a, elements); });
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
