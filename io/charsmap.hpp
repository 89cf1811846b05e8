// SentencePiece's table of characters and what each becomes, which a tokenizer.json keeps as
// "precompiled_charsmap": in base64, a double-array trie (Aoki 1989, in the layout of Darts-clone)
// whose values are places in a row of texts that each end by a zero.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.hpp"

namespace tessera::io {

class Charsmap {
 public:
  /// DataError, naming the place, for what is no such table.
  explicit Charsmap(const JsonCursor& base64);

  /// Text of which each grapheme cluster of less than 6 bytes that begins with an entry has become
  /// what the shortest such entry says, and of the others each character that is one. (So it is
  /// done by the `tokenizers` package; text is valid UTF-8.)
  std::string apply(std::string_view text) const;

 private:
  std::optional<std::string_view> find(std::string_view text) const;
  void append_characters(std::string_view text, std::string& out) const;

  std::vector<std::uint32_t> units_;
  std::string texts_;
};

}  // namespace tessera::io
