// What exact sums decide: the verdict on a step, the factor of a tensor's update, and what a matrix
// is divided by; and how operations read a verdict. Shared by every back end.
#pragma once

#include <cmath>

#include "core/exact_words.hpp"
#include "kernels/api/optimizer.hpp"
#include "kernels/common/math.hpp"

namespace tessera::kernels {

struct VerdictNumbers {
  float apply, coefficient;
};

/// What a step's gradients are multiplied with to be those of the mean over the targets that count;
/// `targets` is null where all do.
TESSERA_INLINE double mean_factor(float unscale, const std::int64_t* targets,
                                  std::int64_t all_targets) {
  if (targets == nullptr) return static_cast<double>(unscale);
  const std::int64_t count = *targets > 1 ? *targets : 1;
  return static_cast<double>(unscale) *
         (static_cast<double>(all_targets) / static_cast<double>(count));
}

/// See Verdict in api/optimizer.hpp; `squares` (kExactSumWords) is used up, `factor` is
/// mean_factor().
TESSERA_INLINE VerdictNumbers verdict_of(std::int64_t* squares, double factor, double clip_norm) {
  const double norm = std::sqrt(exact_words::value(squares)) * factor;
  const bool apply = norm - norm == 0;  // neither infinite nor NaN
  double clip = 1;
  if (apply && clip_norm > 0 && clip_norm / (norm + 1e-6) < 1) clip = clip_norm / (norm + 1e-6);
  return {.apply = apply ? 1.0F : 0.0F, .coefficient = static_cast<float>(factor * clip)};
}

/// The factor c of a tensor by its sums (kTensorWords), which are used up.
TESSERA_INLINE float trust_of(std::int64_t* sums, const UpdateSettings& a) {
  const double weights = std::sqrt(exact_words::value(sums)),
               update = std::sqrt(exact_words::value(sums + kExactSumWords));
  if (weights == 0 || update == 0) return 1;
  const auto ratio = static_cast<float>(weights / update);
  return ratio < a.trust_min ? a.trust_min : ratio > a.trust_max ? a.trust_max : ratio;
}

/// 1 / max(norm, eps) by a norm's squares (kExactSumWords), which are used up.
TESSERA_INLINE float inverse_norm(std::int64_t* squares, float eps) {
  const double norm = std::sqrt(exact_words::value(squares));
  return static_cast<float>(1 /
                            (norm > static_cast<double>(eps) ? norm : static_cast<double>(eps)));
}

/// Whether a verdict, read where the kernel runs, lets something happen; one that is absent does.
TESSERA_INLINE bool applies(const float* verdict) {
  return verdict == nullptr || verdict[static_cast<int>(VerdictField::apply)] != 0.0F;
}

/// What Blend multiplies y with; either of the others may be absent.
TESSERA_INLINE float blend_factor(float add, const float* scalars, const float* verdict) {
  if (scalars != nullptr) add = add * (1.0F / scalars[static_cast<int>(StepScalar::unscale)]);
  if (verdict != nullptr) add = add * verdict[static_cast<int>(VerdictField::coefficient)];
  return add;
}

}  // namespace tessera::kernels
