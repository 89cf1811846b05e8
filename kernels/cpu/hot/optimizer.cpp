#include "kernels/common/adam.hpp"
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

template <typename G, typename P>
void update(const AdamUpdate& a, Range elements) {
  const AdamNumbers k = adam_numbers({a.beta1, a.beta2, a.eps, a.decay, a.decay_kind},
                                     row_of<float>(a.scalars, 0), row_of<float>(a.verdict, 0));
  const std::int64_t first = elements.begin;
  const G* gradient = row_of<G>(a.gradient, 0) + first;
  float* master = row_of<float>(a.master, 0) + first;
  float* m = row_of<float>(a.m, 0) + first;
  float* v = row_of<float>(a.v, 0) + first;
  P* parameter = a.parameter.data == nullptr ? nullptr : row_of<P>(a.parameter, 0) + first;
  for_vectors(elements.end - first, [&](std::int64_t i, std::int64_t count) {
    Vec w_new = load(master + i, count), m_new = load(m + i, count), v_new = load(v + i, count);
    adam_step(k, load(gradient + i, count), w_new, m_new, v_new);
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
