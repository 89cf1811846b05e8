// What tokens stand for: the "decoder" of a tokenizer.json, applied to each token of the vocabulary
// beforehand. What a token is depends on nothing but whether another one precedes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "io/json.hpp"

namespace tessera::io {

struct TokenTexts {
  std::unordered_map<std::int32_t, std::string> behind;  // by id: where other tokens precede it
  std::unordered_map<std::int32_t, std::string>
      first;  // at the begin of a text, where that differs
};

/// Of a vocabulary that is not made of bytes; without a decoder, spaces are between tokens.
/// DataError, naming the place, for one that is not known: known are Sequence, Replace,
/// ByteFallback, Fuse, Strip, Metaspace and WordPiece.
TokenTexts token_texts(const std::unordered_map<std::int32_t, std::string>& names,
                       const std::optional<JsonCursor>& decoder);

}  // namespace tessera::io
