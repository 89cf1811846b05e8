#include "io/token_texts.hpp"

#include <array>
#include <charconv>
#include <functional>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "io/replace_all.hpp"
#include "io/token_model_json.hpp"

namespace tessera::io {
namespace {

using Step = std::function<std::string(std::string token, bool first)>;

/// "<0x41>" is the byte.
std::string byte_of(std::string token, bool) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return token;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (error != std::errc() || end != token.data() + 5) return token;
  return std::string(1, static_cast<char>(value));
}

/// English without the spaces that tokens of words leave before its punctuation.
std::string cleaned_up(std::string text) {
  constexpr std::array<std::pair<const char*, const char*>, 11> kEnglish = {{{" .", "."},
                                                                             {" ?", "?"},
                                                                             {" !", "!"},
                                                                             {" ,", ","},
                                                                             {" ' ", "'"},
                                                                             {" n't", "n't"},
                                                                             {" 'm", "'m"},
                                                                             {" do not", " don't"},
                                                                             {" 's", "'s"},
                                                                             {" 've", "'ve"},
                                                                             {" 're", "'re"}}};
  for (const auto& [what, with] : kEnglish) text = replace_all(text, what, with);
  return text;
}

Step replace_step(const JsonCursor& value) {
  const JsonCursor what = value["pattern"]["String"];
  if (what.text().empty()) what.fail("the empty text cannot be replaced");
  return [what = what.text(), with = value["content"].text()](const std::string& token, bool) {
    return replace_all(token, what, with);
  };
}

/// So many characters at the begin of a text go.
Step strip_step(const JsonCursor& value) {
  const std::string content = value["content"].text();
  const std::int64_t start = value["start"].integer(0, 1000);
  if (value["stop"].integer() != 0) value["stop"].unsupported("only 0 is supported");
  return [=](std::string token, bool first) {
    for (std::int64_t i = 0; first && i < start && token.starts_with(content); ++i)
      token.erase(0, content.size());
    return token;
  };
}

Step metaspace_step(const JsonCursor& value) {
  bool prefixed = value.flag("add_prefix_space", true);
  if (const auto scheme = value.find("prepend_scheme")) prefixed = scheme->text() != "never";
  return [mark = value["replacement"].text(), prefixed](const std::string& token, bool first) {
    return replace_all(token, mark, first && prefixed ? "" : " ");
  };
}

Step word_piece_step(const JsonCursor& value) {
  const std::string prefix = value["prefix"].text();
  const bool cleanup = value.flag("cleanup", true);
  return [=](std::string token, bool first) {
    if (!first) token = token.starts_with(prefix) ? token.substr(prefix.size()) : " " + token;
    return cleanup ? cleaned_up(std::move(token)) : token;
  };
}

void add_steps(const JsonCursor& value, std::vector<Step>& steps) {
  const std::string& type = value["type"].text();
  if (type == "Sequence") {
    value["decoders"].for_each_item([&](const JsonCursor& each) { add_steps(each, steps); });
  } else if (type == "Replace") {
    steps.push_back(replace_step(value));
  } else if (type == "ByteFallback") {
    steps.emplace_back(byte_of);
  } else if (type == "Strip") {
    steps.push_back(strip_step(value));
  } else if (type == "Metaspace") {
    steps.push_back(metaspace_step(value));
  } else if (type == "WordPiece") {
    steps.push_back(word_piece_step(value));
  } else if (type != "Fuse") {  // which joins tokens, as all of them are anyway
    value["type"].unsupported(
        fmt::format("the decoder \"{}\" is not supported here; allowed: Sequence, "
                    "Replace, ByteFallback, Fuse, Strip, Metaspace and WordPiece",
                    type));
  }
}

}  // namespace

TokenTexts token_texts(const std::unordered_map<std::int32_t, std::string>& names,
                       const std::optional<JsonCursor>& decoder) {
  std::vector<Step> steps;
  if (decoder) {
    add_steps(*decoder, steps);
  } else {
    steps.emplace_back(
        [](const std::string& token, bool first) { return first ? token : " " + token; });
  }
  TokenTexts texts;
  for (const auto& [id, token] : names) {
    std::string behind = token, first = token;
    for (const Step& step : steps) {
      behind = step(std::move(behind), false);
      first = step(std::move(first), true);
    }
    if (first != behind) texts.first.emplace(id, std::move(first));
    texts.behind.emplace(id, std::move(behind));
  }
  return texts;
}

}  // namespace tessera::io
