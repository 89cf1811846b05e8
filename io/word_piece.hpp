// WordPiece (Schuster and Nakajima 2012, as BERT uses it): a word is the longest token that it
// begins with, then the longest that continues it, and so on; where that fails it is unknown.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera::io {

/// What a tokenizer file defines.
struct WordPieceModel {
  std::unordered_map<std::string, std::int32_t> ids;
  std::int32_t unknown = 0;
  std::string continuing;           // what tokens begin with that continue a word
  std::int64_t longest_word = 100;  // characters; longer ones are unknown
  std::size_t longest_token = 0;    // bytes
};

/// Appends the ids of a word of valid UTF-8.
void encode_word_pieces(const WordPieceModel& model, std::string_view word,
                        std::vector<std::int32_t>& ids);

}  // namespace tessera::io
