// UTF-8 where text may be broken: tokens end in the middle of characters, and files hold anything.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::io {

struct Utf8Char {
  char32_t code_point = 0;
  std::size_t length = 0;  // bytes
};

/// The character that `text` starts with; nothing if there is none or it is not valid UTF-8
/// (overlong forms, surrogates and code points above 10FFFF are not).
std::optional<Utf8Char> first_utf8_char(std::string_view text);

/// The character that `text` ends with, likewise.
std::optional<Utf8Char> last_utf8_char(std::string_view text);

/// Bytes of the characters at the begin, or at the end, of `text` that are of a kind.
std::size_t bytes_at_begin(std::string_view text, bool (*is_of_kind)(char32_t));
std::size_t bytes_at_end(std::string_view text, bool (*is_of_kind)(char32_t));

/// Bytes at the start of `text` that are valid UTF-8.
std::size_t valid_utf8_prefix(std::string_view text);

void append_utf8(char32_t code_point, std::string& out);

/// Turns a stream of bytes into printable pieces of valid UTF-8: a character that is not complete
/// yet waits for its other bytes; a byte that cannot be part of one becomes U+FFFD.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  /// What still waits, at the end of the stream.
  std::string finish();

 private:
  std::string waiting_;
};

}  // namespace tessera::io
