// Which keys a query of attention sees, and which queries see a key; shared by every back end.
#pragma once

#include <cstdint>

#include "core/choices.hpp"
#include "core/math.hpp"
#include "kernels/api/cached.hpp"
#include "kernels/common/math.hpp"

namespace tessera::kernels {

/// A query sees keys of its document from `before` tokens before its own to `after` tokens behind.
/// Both ends of what it sees never move back from one query to the next, so that consecutive
/// queries see a range between them, and a range of queries sees a key.
struct Sight {
  std::int64_t before = 0, after = 0;

  TESSERA_INLINE constexpr Range keys_of(std::int64_t query, Range document) const {
    return clipped({query - before, query + after + 1}, document);
  }
  TESSERA_INLINE constexpr Range queries_of(std::int64_t key, Range document) const {
    return clipped({key - after, key + before + 1}, document);
  }
  /// What any of these queries, which are of one document, sees.
  TESSERA_INLINE constexpr Range keys_of(Range queries, Range document) const {
    return {keys_of(queries.begin, document).begin, keys_of(queries.end - 1, document).end};
  }
  /// Those that see any of these keys.
  TESSERA_INLINE constexpr Range queries_of(Range keys, Range document) const {
    return {queries_of(keys.begin, document).begin, queries_of(keys.end - 1, document).end};
  }

  TESSERA_INLINE static constexpr Range clipped(Range r, Range document) {
    return {r.begin > document.begin ? r.begin : document.begin,
            r.end < document.end ? r.end : document.end};
  }
};

/// Of queries that see up to `window` - 1 tokens away, or with 0 all of `tokens`.
TESSERA_INLINE constexpr Sight sight_of(AttentionMask mask, std::int64_t window,
                                        std::int64_t tokens) {
  const std::int64_t reach = window > 0 && window < tokens ? window - 1 : tokens;
  return {reach, mask == AttentionMask::causal ? 0 : reach};
}

/// The document of a token of a sample of `tokens`: all of it where there is no table (B, tokens,
/// 2).
TESSERA_INLINE constexpr Range document_of(const std::int32_t* documents, std::int64_t sample,
                                           std::int64_t token, std::int64_t tokens) {
  if (documents == nullptr) return {0, tokens};
  const std::int32_t* const range = documents + (sample * tokens + token) * 2;
  return {range[0], range[1]};
}

/// Keys of an attention: `count` from token `first` on of sequences of `tokens`. Kernels count
/// tokens from the first of them, so that queries may have numbers below 0 or behind all keys.
struct KeyPart {
  std::int64_t first = 0, count = 0, tokens = 0;

  /// That of a token, counted so.
  TESSERA_INLINE constexpr Range document_of(const std::int32_t* documents, std::int64_t sample,
                                             std::int64_t token) const {
    const Range document = kernels::document_of(documents, sample, first + token, tokens);
    return {document.begin - first, document.end - first};
  }
  /// Those of a document that are keys; there may be none, and then the end may be before the
  /// begin.
  TESSERA_INLINE constexpr Range keys_of(Range document) const {
    return Sight::clipped(document, {0, count});
  }
  /// Number of a query's and a key's pair among those of a sample's heads.
  TESSERA_INLINE constexpr std::int64_t pair(std::int64_t head, std::int64_t query,
                                             std::int64_t key) const {
    return (head * tokens + first + query) * tokens + first + key;
  }
};

/// What a cache has of a sample, with the call's tokens: keys from the first token on, and the
/// token of its first query.
TESSERA_INLINE constexpr KeyPart part_of(const CachedSample& sample) {
  const std::int64_t tokens = std::int64_t{sample.before} + sample.count;
  return {0, tokens, tokens};
}
/// The position of token t of the call; padding is where the last token is.
TESSERA_INLINE constexpr std::int64_t position_of(const CachedSample& sample, std::int64_t t) {
  const std::int64_t last = sample.count > 0 ? sample.count - 1 : 0;
  return sample.before + (t < last ? t : last);
}

/// What a query gets of two sets of keys: how much of each, and the log of the sum of exponentials
/// of both.
struct MergedLse {
  float of_first, of_second, lse;
};
TESSERA_INLINE MergedLse merged_lse(float first, float second) {
  const float larger = first > second ? first : second;
  if (larger == -__builtin_inff()) return {0, 0, larger};
  const float a = exp_of(first - larger), b = exp_of(second - larger), sum = a + b;
  return {a / sum, b / sum, larger + __builtin_logf(sum)};
}

}  // namespace tessera::kernels
