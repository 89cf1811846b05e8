#include "kernels/api/preference.hpp"

#include "kernels/api/checks.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels {

void check(const PreferenceLoss& a) {
  TESSERA_CHECK(a.target_losses.rank == 2 && a.target_losses.rows() % 2 == 0,
                "losses of targets are (2 pairs, targets), not of {} samples",
                a.target_losses.rows());
  const std::int64_t samples = a.target_losses.rows(), all = a.target_losses.elements();
  check_flat({a.target_losses}, DType::f32, all);
  check_flat({a.targets}, DType::i32, all);
  TESSERA_CHECK(static_cast<bool>(a.reference) == a.terms.relative(),
                "a reference where rewards are not relative to one, or none where they are");
  if (a.reference) check_flat({a.reference}, DType::f64, samples);
  check_flat({a.losses}, DType::f32, samples);
  check_flat({a.statistics}, DType::f32, kPreferenceStats * (samples / 2));
  TESSERA_CHECK(static_cast<bool>(a.scale) == static_cast<bool>(a.slopes),
                "slopes go with their scale");
  if (a.scale) check_flat({a.scale}, DType::f32, 1);
  if (a.scale) check_flat({a.slopes}, DType::f32, all);
  TESSERA_CHECK(a.terms && a.terms.beta > 0, "a beta of {}", a.terms.beta);
  TESSERA_CHECK(a.terms.label_smoothing >= 0 && a.terms.label_smoothing < 0.5F,
                "label smoothing of {}", a.terms.label_smoothing);
}

void check(const Score& a) {
  TESSERA_CHECK(a.logits.rank == 2, "logits of {} dimensions", a.logits.rank);
  check_flat({a.targets}, DType::i32, a.logits.rows());
  check_flat({a.losses}, DType::f32, a.logits.rows());
}

void check(const ScoreGradient& a) {
  TESSERA_CHECK(a.logits.rank == 2, "logits of {} dimensions", a.logits.rank);
  check_flat({a.slopes}, DType::f32, a.logits.rows());
}

}  // namespace tessera::kernels
