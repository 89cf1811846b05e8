// Which tokens of a document are pooled; shared by every back end.
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

/// Samples of so many tokens, of whose documents the first `most` are pooled.
struct PooledDocuments {
  const std::int32_t* table = nullptr;  // (B, tokens, 2), or none
  std::int64_t tokens = 0, most = 1;
  Pooling kind = Pooling::mean;

  /// Of some document's tokens, those that are pooled.
  TESSERA_INLINE constexpr Range pooled(Range document) const {
    return kind == Pooling::mean || document.empty() ? document
           : kind == Pooling::first                  ? Range{document.begin, document.begin + 1}
                                                     : Range{document.end - 1, document.end};
  }
  /// What row `row` of the outputs is made of; nothing where its sample has no such document.
  TESSERA_INLINE constexpr Range of_output(std::int64_t row) const {
    const std::int64_t sample = row / most;
    Range document{0, 0};
    for (std::int64_t k = row % most; k >= 0; --k) {
      document = document.end < tokens ? document_of(table, sample, document.end, tokens)
                                       : Range{tokens, tokens};
    }
    return pooled(document);
  }
  /// The row of the outputs that a token is part of, and of how many tokens that is; -1: of none.
  struct Output {
    std::int64_t row = -1, tokens = 1;
  };
  TESSERA_INLINE constexpr Output of_token(std::int64_t sample, std::int64_t token) const {
    const Range own = document_of(table, sample, token, tokens), all = pooled(own);
    if (token < all.begin || token >= all.end) return {};
    std::int64_t before = 0;  // documents
    for (std::int64_t t = 0; t < own.begin && before < most; ++before)
      t = document_of(table, sample, t, tokens).end;
    return before < most ? Output{.row = sample * most + before, .tokens = all.count()} : Output{};
  }
};

/// What a sum over so many tokens is multiplied with.
TESSERA_INLINE constexpr float pooled_share(std::int64_t tokens) {
  return tokens > 0 ? 1.0F / static_cast<float>(tokens) : 0;
}

}  // namespace tessera::kernels
