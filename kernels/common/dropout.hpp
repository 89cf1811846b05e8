// The random numbers of a dropout mask, shared by every back end.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/api/access.hpp"
#include "kernels/common/math.hpp"

namespace tessera::kernels {

/// What decides a mask besides sample and element: an element is kept if its random bits >=
/// threshold.
struct DropoutRule {
  RandomKey key;
  std::uint32_t threshold = 0;
  float factor = 1;        // of what is kept, at least
  float spread = 0;        // what its bits add to that at most
  std::int64_t first = 0;  // the view's first element within its sample
};

inline DropoutRule dropout_rule(const Dropout& dropout) {
  return {
      .key = dropout.key(),
      .threshold = static_cast<std::uint32_t>(std::ceil(static_cast<double>(dropout.p) * 0x1p32)),
      .factor = dropout.jitter > 0 ? 1.0F - dropout.jitter : 1.0F / (1.0F - dropout.p),
      .spread = 2 * dropout.jitter,
      .first = dropout.first};
}

/// What an element with these random bits is multiplied with.
TESSERA_INLINE float factor_of(const DropoutRule& rule, std::uint32_t bits) {
  const float more = static_cast<float>(static_cast<std::int32_t>(bits >> 8)) * 0x1p-24F;
  return bits >= rule.threshold ? rule.factor + rule.spread * more : 0.0F;
}

}  // namespace tessera::kernels
