// A tokenizer.json, and texts through it and back.
#include "io/tokenizer.hpp"

#include "target.hpp"

namespace tessera::fuzz {
namespace {

/// A tokenizer may put a space before a text, and after each added token in it.
std::string without_spaces(std::string text) {
  std::erase(text, ' ');
  return text;
}

}  // namespace

const ExitCode kRefusal = ExitCode::data;

void read(const std::string& input) {
  io::Tokenizer tokenizer = io::Tokenizer::parse(input, "tokenizer.json");
  for (const std::string_view text : {"It's 12345 \xf0\x9f\x98\x80<|endoftext|> \xff", "", "   \n",
                                      " the a\tb", "\xc3\xa9\xc3"}) {
    const std::vector<std::int32_t> ids = tokenizer.encode(text);  // a pattern may refuse it
    for (const std::int32_t id : ids) {
      TESSERA_CHECK(id >= 0 && id < tokenizer.vocab(), "id {} of {}", id, tokenizer.vocab());
    }
    // Tokens of bytes give the text back; others lose what they normalize or do not know.
    if (!tokenizer.exact()) continue;
    const std::string back = tokenizer.decode(ids);
    TESSERA_CHECK(without_spaces(back) == without_spaces(std::string(text)), "\"{}\" became \"{}\"",
                  text, back);
  }
}

}  // namespace tessera::fuzz
