#include "io/word_piece.hpp"

#include <algorithm>

namespace tessera::io {
namespace {

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

}  // namespace

void encode_word_pieces(const WordPieceModel& model, std::string_view word,
                        std::vector<std::int32_t>& ids) {
  const std::size_t before = ids.size();
  const auto unknown = [&] {
    ids.resize(before);
    ids.push_back(model.unknown);
  };
  const auto characters =
      std::ranges::count_if(word, [](char c) { return !continues_character(c); });
  if (characters > model.longest_word) return unknown();
  std::string token;
  for (std::size_t begin = 0; begin < word.size();) {
    token = begin > 0 ? model.continuing : "";
    const std::size_t ahead = token.size();
    token += word.substr(begin, model.longest_token);
    auto found = model.ids.find(token);
    while (found == model.ids.end() && token.size() > ahead) {
      token.pop_back();
      found = model.ids.find(token);
    }
    if (token.size() == ahead) return unknown();
    ids.push_back(found->second);
    begin += token.size() - ahead;
  }
}

}  // namespace tessera::io
