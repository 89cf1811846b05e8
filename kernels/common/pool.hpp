// Which tokens of a sample are pooled; shared by every back end.
#pragma once

#include "kernels/common/sight.hpp"

namespace tessera::kernels {

/// Parts of a sum over tokens: token i of those that are pooled is added to part i modulo this.
inline constexpr int kPoolParts = 16;

/// The first of the parts becomes their sum, added by halves. `F`: float, or a vector of floats.
template <typename F>
TESSERA_INLINE void fold_parts(F (&part)[kPoolParts]) {
  for (int half = kPoolParts / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) part[i] = part[i] + part[i + half];
  }
}

TESSERA_INLINE constexpr Range pooled_tokens(Pooling kind, const std::int32_t* documents,
                                             std::int64_t sample, std::int64_t tokens) {
  const std::int64_t end = document_of(documents, sample, 0, tokens).end;
  return kind == Pooling::mean    ? Range{0, end}
         : kind == Pooling::first ? Range{0, 1}
                                  : Range{end - 1, end};
}

/// What a sum over these tokens is multiplied with.
TESSERA_INLINE constexpr float pooled_share(Range tokens) {
  return 1.0F / static_cast<float>(tokens.count());
}

}  // namespace tessera::kernels
