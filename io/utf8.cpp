#include "io/utf8.hpp"

#include <algorithm>

namespace tessera::io {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

bool is_continuation(unsigned char byte) { return (byte & 0xC0U) == 0x80U; }

/// Bytes of a character that starts with `lead`; 0 if none does.
std::size_t length_from_lead(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead < 0xE0) return 2;
  if (lead >= 0xE0 && lead < 0xF0) return 3;
  if (lead >= 0xF0 && lead < 0xF5) return 4;
  return 0;
}

/// Could more bytes make `text` start with a valid character?
bool is_incomplete(std::string_view text) {
  const std::size_t length = length_from_lead(static_cast<unsigned char>(text[0]));
  if (length <= text.size()) return false;
  // The second byte decides on overlong forms and surrogates; any continuation does for the rest.
  if (text.size() > 1) {
    std::string padded(text);  // shorter than a character
    padded.append(length - text.size(), '\x80');
    return first_utf8_char(padded).has_value();
  }
  return true;
}

}  // namespace

std::optional<Utf8Char> first_utf8_char(std::string_view text) {
  if (text.empty()) return std::nullopt;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = length_from_lead(byte(0));
  if (length == 0 || length > text.size()) return std::nullopt;
  if (length == 1) return Utf8Char{byte(0), 1};
  char32_t code_point = byte(0) & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if (!is_continuation(byte(i))) return std::nullopt;
    code_point = code_point << 6 | (byte(i) & 0x3FU);
  }
  const bool overlong =
      (length == 3 && code_point < 0x800) || (length == 4 && code_point < 0x10000);
  const bool surrogate = code_point >= 0xD800 && code_point < 0xE000;
  if (overlong || surrogate || code_point > 0x10FFFF) return std::nullopt;
  return Utf8Char{code_point, length};
}

std::optional<Utf8Char> last_utf8_char(std::string_view text) {
  for (std::size_t length = 1; length <= std::min<std::size_t>(4, text.size()); ++length) {
    const auto character = first_utf8_char(text.substr(text.size() - length));
    if (character && character->length == length) return character;
  }
  return std::nullopt;
}

std::size_t bytes_at_begin(std::string_view text, bool (*is_of_kind)(char32_t)) {
  std::size_t bytes = 0;
  for (auto c = first_utf8_char(text); c && is_of_kind(c->code_point);
       c = first_utf8_char(text.substr(bytes)))
    bytes += c->length;
  return bytes;
}

std::size_t bytes_at_end(std::string_view text, bool (*is_of_kind)(char32_t)) {
  std::size_t bytes = 0;
  for (auto c = last_utf8_char(text); c && is_of_kind(c->code_point);
       c = last_utf8_char(text.substr(0, text.size() - bytes)))
    bytes += c->length;
  return bytes;
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t valid = 0;
  while (const auto character = first_utf8_char(text.substr(valid))) valid += character->length;
  return valid;
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6), put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12), put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18), put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F)), put(0x80 | (code_point & 0x3F));
  }
}

std::string Utf8Stream::push(std::string_view bytes) {
  waiting_ += bytes;
  std::string out;
  std::string_view rest = waiting_;
  while (!rest.empty()) {
    const auto character = first_utf8_char(rest);
    if (!character && is_incomplete(rest)) break;
    const std::size_t length = character ? character->length : 1;
    out += character ? rest.substr(0, length) : kReplacement;
    rest.remove_prefix(length);
  }
  waiting_ = std::string(rest);
  return out;
}

std::string Utf8Stream::finish() {
  std::string out;
  for (std::size_t i = 0; i < waiting_.size(); ++i) out += kReplacement;
  waiting_.clear();
  return out;
}

}  // namespace tessera::io
