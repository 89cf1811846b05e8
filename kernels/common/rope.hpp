// The angles of rotary positions, shared by every back end.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "core/math.hpp"
#include "kernels/api/rope.hpp"
#include "kernels/common/math.hpp"

namespace tessera::kernels {

/// Positions `first` .. `first + tokens` of heads whose first `dim` columns turn.
struct Turns {
  double theta;
  std::int64_t dim, first, tokens;
  RopeScalingKind scaling = RopeScalingKind::none;
  double factor = 1;
  /// The quantity, turns in `context` tokens with llama3 or i with yarn, from which on a frequency
  /// is divided by the factor, and that from which on it stays.
  double divided = 0, kept = 0;
  double context = 0;
  double magnitude = 1;  // of cosines and sines
  double base = 0;       // theta without scaling
};

/// yarn's i, as a real number, of whose frequency a context of `positions` holds `turns` turns.
inline double pair_with_turns(double turns, const Turns& a, std::int64_t positions) {
  return static_cast<double>(a.dim) *
         std::log(static_cast<double>(positions) / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(a.theta));
}

/// theta of a sequence of so many tokens, with dynamic frequencies.
TESSERA_INLINE double dynamic_theta(double theta, const RopeScaling& s, std::int64_t turned,
                                    std::int64_t tokens) {
  const auto dim = static_cast<double>(turned), context = static_cast<double>(s.original_positions);
  const auto length =
      static_cast<double>(tokens > s.original_positions ? tokens : s.original_positions);
  return theta * std::pow(s.factor * length / context - (s.factor - 1), dim / (dim - 2));
}

inline Turns turns_of(const Rope& a) {
  using enum RopeScalingKind;
  const RopeScaling& s = a.scaling;
  const auto dim = static_cast<double>(a.turned());
  const auto context = static_cast<double>(s.original_positions);
  Turns turns{.theta = a.theta,
              .dim = a.turned(),
              .first = a.first_position,
              .tokens = a.positions(),
              .scaling = s.kind,
              .factor = s.factor,
              .context = context,
              .base = a.theta};
  if (s.kind == dynamic) {
    turns.theta = dynamic_theta(a.theta, s, a.turned(), s.positions);
  } else if (s.kind == llama3) {
    turns.divided = s.low_frequency, turns.kept = s.high_frequency;
  } else if (s.kind == yarn) {
    const double fast = pair_with_turns(s.fast_turns, turns, s.original_positions);
    const double slow = pair_with_turns(s.slow_turns, turns, s.original_positions);
    turns.kept = std::max(std::floor(fast), 0.0);
    turns.divided = std::min(std::ceil(slow), dim - 1);
    if (turns.divided == turns.kept) turns.divided += 0.001;
    turns.magnitude = s.magnitude > 0 ? s.magnitude : 0.1 * std::log(s.factor) + 1;
  }
  return turns;
}

/// Those of one sample's tokens behind what a cache has of it.
TESSERA_INLINE Turns turns_of(Turns all, const RopeScaling& s, const CachedSample& sample) {
  all.first = sample.before;
  if (s.kind == RopeScalingKind::dynamic) {
    const std::int64_t there = std::int64_t{sample.before} + sample.count;
    all.theta = dynamic_theta(all.base, s, all.dim, sample.tokens > there ? sample.tokens : there);
  }
  return all;
}

/// The angle that pair i turns from one position to the next.
TESSERA_INLINE double turn_step(const Turns& a, std::int64_t i) {
  const double step = std::pow(a.theta, -2.0 * static_cast<double>(i) / static_cast<double>(a.dim));
  if (a.scaling == RopeScalingKind::none || a.scaling == RopeScalingKind::dynamic) return step;
  double kept = 0;  // a share of the frequency
  if (a.scaling != RopeScalingKind::linear) {
    const double of = a.scaling == RopeScalingKind::llama3
                          ? a.context * step / (2 * std::numbers::pi)
                          : static_cast<double>(i);
    kept = (of - a.divided) / (a.kept - a.divided);
    kept = kept < 0 ? 0 : kept > 1 ? 1 : kept;
  }
  return (1 - kept) * step / a.factor + kept * step;
}

/// Cosines and sines are turned on step by step from each multiple of 32 in double, so that a
/// position's values do not depend on where a call begins. So many runs hold a call's positions.
inline constexpr std::int64_t kTurnStride = 32;
constexpr std::int64_t turn_runs(std::int64_t first, std::int64_t tokens) {
  return tokens == 0 ? 0 : (first + tokens - 1) / kTurnStride - first / kTurnStride + 1;
}

/// Pair i of the call's positions in one run; `table` is (tokens, 2, dim / 2) f32, cosines, then
/// sines.
TESSERA_INLINE void turn_run(const Turns& a, std::int64_t run, std::int64_t i, float* table) {
  const double step = turn_step(a, i);
  const double step_cos = std::cos(step), step_sin = std::sin(step);
  const std::int64_t begin = (a.first / kTurnStride + run) * kTurnStride;
  double c = std::cos(static_cast<double>(begin) * step);
  double s = std::sin(static_cast<double>(begin) * step);
  for (std::int64_t p = begin; p < begin + kTurnStride && p < a.first + a.tokens; ++p) {
    if (p >= a.first) {
      float* row = table + (p - a.first) * a.dim + i;
      row[0] = static_cast<float>(c * a.magnitude);
      row[a.dim / 2] = static_cast<float>(s * a.magnitude);
    }
    const double next = c * step_cos - s * step_sin;
    s = s * step_cos + c * step_sin;
    c = next;
  }
}

}  // namespace tessera::kernels
