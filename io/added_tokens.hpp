// Tokens that were added to a tokenizer's vocabulary, such as "<|endoftext|>": they are found in
// the text before anything else is.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/normalizer.hpp"

namespace tessera::io {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool special = false;
  bool normalized = false;   // looked for in normalized text, after those that are not
  bool single_word = false;  // only where no character of a word is beside it
  bool takes_left = false, takes_right = false;  // the white space beside it is part of it
};

/// Finds added tokens in text: at each place the longest one wins.
class AddedTokenFinder {
 public:
  /// Those of the tokens that are looked for in normalized text, or the others.
  AddedTokenFinder(const std::vector<AddedToken>& all, bool normalized,
                   const Normalizer& normalizer);
  AddedTokenFinder(const AddedTokenFinder&) = delete;  // the table points into tokens_
  AddedTokenFinder& operator=(const AddedTokenFinder&) = delete;

  /// Calls `text_piece` for the text between tokens (none empty) and `found` for each token's id.
  /// Special tokens are found only if they are wanted.
  template <typename TextPiece, typename Found>
  void cut(std::string_view text, bool special, const TextPiece& text_piece,
           const Found& found) const {
    std::size_t done = 0;
    for (std::size_t i = 0; i < text.size() && !tokens_.empty();) {
      const AddedToken* token = token_at(text.substr(i));
      if (token == nullptr) {
        ++i;
        continue;
      }
      const Place place = place_of(*token, text, i, done);
      i += token->content.size();
      if (!place.possible || (token->special && !special)) continue;
      if (place.begin > done) text_piece(text.substr(done, place.begin - done));
      found(token->id);
      done = place.end;
    }
    if (done < text.size()) text_piece(text.substr(done));
  }

 private:
  struct Place {
    std::size_t begin = 0, end = 0;
    bool possible = true;
  };
  const AddedToken* token_at(std::string_view text) const;
  /// Of a token that begins at `at`, with what belongs to it beside; text before `done` is
  /// another's.
  static Place place_of(const AddedToken& token, std::string_view text, std::size_t at,
                        std::size_t done);

  std::vector<AddedToken> tokens_;
  std::array<std::vector<const AddedToken*>, 256> by_first_byte_;
};

}  // namespace tessera::io
