// The random numbers of a dropout mask, shared by every back end.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/api/access.hpp"
#include "kernels/common/math.hpp"

namespace tessera::kernels {

/// What decides a mask besides sample and element: an element is kept if its random half is at
/// least `threshold`. Jitter drops nothing.
struct DropoutRule {
  RandomKey key;
  std::uint32_t threshold = 0;
  float factor = 1;        // of what is kept, at least
  float spread = 0;        // what its bits add to that at most
  std::int64_t first = 0;  // the view's first element within its sample
};

inline DropoutRule dropout_rule(const Dropout& dropout) {
  constexpr double kAll = 0x1p16;
  if (dropout.jitter > 0)
    return {.key = dropout.key(),
            .factor = 1.0F - dropout.jitter,
            .spread = 2 * dropout.jitter,
            .first = dropout.first};
  const double dropped =
      dropout.p > 0 ? std::clamp(std::round(double{dropout.p} * kAll), 1.0, kAll - 1) : 0;
  return {.key = dropout.key(),
          .threshold = static_cast<std::uint32_t>(dropped),
          .factor = static_cast<float>(kAll / (kAll - dropped)),
          .first = dropout.first};
}

/// What an element with these random bits is multiplied with by jitter.
TESSERA_INLINE float jitter_of(const DropoutRule& rule, std::uint32_t bits) {
  const float more = static_cast<float>(static_cast<std::int32_t>(bits >> 8)) * 0x1p-24F;
  return rule.factor + rule.spread * more;
}

}  // namespace tessera::kernels
