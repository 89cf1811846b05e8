#include "io/added_tokens.hpp"

#include <algorithm>
#include <functional>
#include <optional>

#include "io/unicode.hpp"

namespace tessera::io {
namespace {

/// The last character of a text, if it ends in one.
std::optional<Utf8Char> last_character(std::string_view text) {
  for (std::size_t length = 1; length <= std::min<std::size_t>(4, text.size()); ++length) {
    const auto character = first_utf8_char(text.substr(text.size() - length));
    if (character && character->length == length) return character;
  }
  return std::nullopt;
}

/// Bytes of white space at the end, or at the begin, of a text.
std::size_t space_at_end(std::string_view text) {
  std::size_t bytes = 0;
  for (auto c = last_character(text); c && is_white_space(c->code_point);
       c = last_character(text.substr(0, text.size() - bytes)))
    bytes += c->length;
  return bytes;
}

std::size_t space_at_begin(std::string_view text) {
  std::size_t bytes = 0;
  for (auto c = first_utf8_char(text); c && is_white_space(c->code_point);
       c = first_utf8_char(text.substr(bytes)))
    bytes += c->length;
  return bytes;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& all, bool normalized,
                                   const Normalizer& normalizer) {
  for (const AddedToken& token : all) {
    if (token.normalized != normalized) continue;
    tokens_.push_back(token);
    // It is looked for as the text is that it is looked for in.
    if (normalized && !normalizer.empty())
      tokens_.back().content = normalizer.apply(token.content, /*begins=*/true);
    if (tokens_.back().content.empty()) tokens_.pop_back();
  }
  std::ranges::stable_sort(tokens_, std::greater<>(),
                           [](const AddedToken& token) { return token.content.size(); });
  for (const AddedToken& token : tokens_)
    by_first_byte_[static_cast<unsigned char>(token.content[0])].push_back(&token);
}

const AddedToken* AddedTokenFinder::token_at(std::string_view text) const {
  for (const AddedToken* token : by_first_byte_[static_cast<unsigned char>(text[0])]) {
    if (text.starts_with(token->content)) return token;
  }
  return nullptr;
}

AddedTokenFinder::Place AddedTokenFinder::place_of(const AddedToken& token, std::string_view text,
                                                   std::size_t at, std::size_t done) {
  Place place{.begin = at, .end = at + token.content.size()};
  const std::string_view before = text.substr(0, place.begin), behind = text.substr(place.end);
  if (token.single_word) {
    const auto left = last_character(before), right = first_utf8_char(behind);
    place.possible = !(left && is_word_character(left->code_point)) &&
                     !(right && is_word_character(right->code_point));
  }
  if (token.takes_left) place.begin = std::max(place.begin - space_at_end(before), done);
  if (token.takes_right) place.end += space_at_begin(behind);
  return place;
}

}  // namespace tessera::io
