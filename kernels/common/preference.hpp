// The formulas of a pair's loss and its derivative, shared by every back end.
#pragma once

#include <cmath>

#include "kernels/api/preference.hpp"
#include "kernels/common/math.hpp"

namespace tessera::kernels {

/// log sigmoid(x), whatever the size of x.
TESSERA_INLINE double log_sigmoid(double x) {
  return (x < 0 ? x : 0.0) - std::log1p(std::exp(x < 0 ? x : -x));
}

/// What becomes of a pair whose samples' log ratios are r.
struct PairOutcome {
  double loss, slope;  // the latter by h, the chosen sample's ratio less the rejected one's

  TESSERA_INLINE PairOutcome(const PreferenceTerms& terms, double chosen, double rejected) {
    const double h = chosen - rejected;
    const auto b = static_cast<double>(terms.beta), s = static_cast<double>(terms.label_smoothing);
    if (terms.kind == PreferenceKind::ipo) {
      const double off = h - 0.5 / b;
      loss = off * off;
      slope = 2 * off;
      return;
    }
    const double right = log_sigmoid(b * h), wrong = log_sigmoid(-b * h);
    loss = -((1 - s) * right + s * wrong);
    slope = b * (s * std::exp(right) - (1 - s) * std::exp(wrong));
  }
};

/// Writes what a call says of pair p, given its samples' log p in sum, or their scores, and whether
/// any of its targets counts; `reference` is null where there is none. `write_slope(sample, slope)`
/// gives a sample's targets their slope.
template <typename WriteSlope>
TESSERA_INLINE void finish_pair(const PreferenceTerms& terms, std::int64_t pairs, std::int64_t p,
                                const double (&log_p)[2], bool counts, const double* reference,
                                const float* scale, float* losses, float* statistics,
                                WriteSlope&& write_slope) {
  const auto ratio = [&](std::int64_t s) {
    return reference == nullptr ? log_p[s] : log_p[s] - reference[2 * p + s];
  };
  const double chosen = counts ? ratio(0) : 0, rejected = counts ? ratio(1) : 0;
  const PairOutcome outcome(terms, chosen, rejected);
  losses[2 * p] = counts ? static_cast<float>(outcome.loss) : 0.0F;
  losses[2 * p + 1] = 0;
  statistics[p] = static_cast<float>(chosen);
  statistics[pairs + p] = static_cast<float>(rejected);
  statistics[2 * pairs + p] = chosen > rejected ? 1.0F : 0.0F;
  if (scale == nullptr) return;
  // -log p of the chosen answer lowers h, that of the rejected one raises it.
  const auto slope =
      counts ? static_cast<float>(static_cast<double>(*scale) * outcome.slope) : 0.0F;
  write_slope(0, -slope);
  write_slope(1, slope);
}

}  // namespace tessera::kernels
