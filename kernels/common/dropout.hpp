// The random numbers of a dropout mask, shared by every back end.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/api/access.hpp"

namespace tessera::kernels {

/// What decides a mask besides sample and element: an element is kept if its random bits >=
/// threshold.
struct DropoutRule {
  RandomKey key;
  std::uint32_t threshold = 0;
  float factor = 1;        // of what is kept
  std::int64_t first = 0;  // the view's first element within its sample
};

inline DropoutRule dropout_rule(const Dropout& dropout) {
  return {
      .key = dropout.key(),
      .threshold = static_cast<std::uint32_t>(std::ceil(static_cast<double>(dropout.p) * 0x1p32)),
      .factor = 1.0F / (1.0F - dropout.p),
      .first = dropout.first};
}

}  // namespace tessera::kernels
