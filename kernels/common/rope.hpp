// The angles of rotary positions, shared by every back end.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/math.hpp"
#include "kernels/common/math.hpp"

namespace tessera::kernels {

/// Positions `first` .. `first + tokens` of heads of `head_dim` columns.
struct Turns {
  double theta;
  std::int64_t head_dim, first, tokens;
};

/// Cosines and sines are turned on step by step from each multiple of 32 in double, so that a
/// position's values do not depend on where a call begins. So many runs hold a call's positions.
inline constexpr std::int64_t kTurnStride = 32;
constexpr std::int64_t turn_runs(std::int64_t first, std::int64_t tokens) {
  return tokens == 0 ? 0 : (first + tokens - 1) / kTurnStride - first / kTurnStride + 1;
}

/// Column i < D / 2 of the call's positions in one run; `table` is (tokens, 2, D / 2) f32, cosines,
/// then sines.
TESSERA_INLINE void turn_run(const Turns& a, std::int64_t run, std::int64_t i, float* table) {
  const double step =
      std::pow(a.theta, -2.0 * static_cast<double>(i) / static_cast<double>(a.head_dim));
  const double step_cos = std::cos(step), step_sin = std::sin(step);
  const std::int64_t begin = (a.first / kTurnStride + run) * kTurnStride;
  double c = std::cos(static_cast<double>(begin) * step);
  double s = std::sin(static_cast<double>(begin) * step);
  for (std::int64_t p = begin; p < begin + kTurnStride && p < a.first + a.tokens; ++p) {
    if (p >= a.first) {
      float* row = table + (p - a.first) * a.head_dim + i;
      row[0] = static_cast<float>(c), row[a.head_dim / 2] = static_cast<float>(s);
    }
    const double next = c * step_cos - s * step_sin;
    s = s * step_cos + c * step_sin;
    c = next;
  }
}

}  // namespace tessera::kernels
