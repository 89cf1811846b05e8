// What Unicode says of characters, and the normal forms of text, as the `tokenizers` package sees
// them, whose tables are of several versions: classes of characters are read off it
// (unicode_ranges.inc), and of what utf8proc (Unicode 15) decomposes it does not know some newer
// characters. Upper case that is newer than Unicode 15 has no lower case here.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "io/utf8.hpp"

namespace tessera::io {

enum class NormalForm { nfc, nfd, nfkc, nfkd };

/// Of valid UTF-8.
std::string normal_form(std::string_view text, NormalForm form);

bool is_white_space(char32_t c);      // the property White_Space
bool is_numeric(char32_t c);          // Nd, Nl, No
bool is_punctuation(char32_t c);      // P*, and all of ASCII's that is neither letter nor digit
bool is_nonspacing_mark(char32_t c);  // Mn
bool is_mark(char32_t c);             // M*
bool is_control(char32_t c);          // Cc, Cf, Co
bool is_ideograph(char32_t c);        // what BERT calls Chinese
/// What \w is in Unicode's regular expressions (UTS 18, annex C): alphabetic, marks, decimal
/// digits, connectors, joiners.
bool is_word_character(char32_t c);

/// Appends the lower case of one character, which may be several.
void append_lower(char32_t c, std::string& out);

/// Calls `visit` for each extended grapheme cluster of valid UTF-8 (UAX 29).
void for_each_grapheme(std::string_view text, const std::function<void(std::string_view)>& visit);

/// Calls `visit(character, its bytes)` for each character; of bytes that are none for each, as
/// U+FFFD.
template <typename Visit>
void for_each_character(std::string_view text, const Visit& visit) {
  for (std::size_t at = 0; at < text.size();) {
    const auto character = first_utf8_char(text.substr(at));
    const std::size_t length = character ? character->length : 1;
    visit(character ? character->code_point : U'\uFFFD', text.substr(at, length));
    at += length;
  }
}

}  // namespace tessera::io
