#include "io/added_tokens.hpp"

#include <algorithm>
#include <functional>
#include <optional>

#include "io/unicode.hpp"

namespace tessera::io {
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
    const auto left = last_utf8_char(before), right = first_utf8_char(behind);
    place.possible = !(left && is_word_character(left->code_point)) &&
                     !(right && is_word_character(right->code_point));
  }
  if (token.takes_left)
    place.begin = std::max(place.begin - bytes_at_end(before, is_white_space), done);
  if (token.takes_right) place.end += bytes_at_begin(behind, is_white_space);
  return place;
}

}  // namespace tessera::io
