#include "io/normalizer.hpp"

#include <memory>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "io/charsmap.hpp"
#include "io/replace_all.hpp"
#include "io/split_pattern.hpp"
#include "io/unicode.hpp"

namespace tessera::io {
namespace {

/// Each character replaced by what `map(character, its bytes, out)` appends.
template <typename Map>
std::string mapped(const std::string& text, const Map& map) {
  std::string out;
  out.reserve(text.size());
  for_each_character(text, [&](char32_t c, std::string_view bytes) { map(c, bytes, out); });
  return out;
}

std::string lower(const std::string& text) {
  return mapped(text, [](char32_t c, std::string_view, std::string& out) { append_lower(c, out); });
}

template <typename Unwanted>
std::string without(const std::string& text, const Unwanted& unwanted) {
  return mapped(text, [&](char32_t c, std::string_view bytes, std::string& out) {
    if (!unwanted(c)) out += bytes;
  });
}

/// Controls, and what stands for broken characters, go; all white space is a space.
std::string cleaned(const std::string& text) {
  return mapped(text, [](char32_t c, std::string_view bytes, std::string& out) {
    const bool space = c == '\t' || c == '\n' || c == '\r';
    if (space || (is_white_space(c) && !is_control(c))) {
      out += ' ';
    } else if (c != 0 && c != 0xFFFD && !is_control(c)) {
      out += bytes;
    }
  });
}

std::string spaced_ideographs(const std::string& text) {
  return mapped(text, [](char32_t c, std::string_view bytes, std::string& out) {
    if (is_ideograph(c)) {
      out.append(" ").append(bytes).append(" ");
    } else {
      out += bytes;
    }
  });
}

std::string stripped(const std::string& text, bool left, bool right) {
  std::size_t first = text.size(), last = 0, at = 0;
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    if (!is_white_space(c)) {
      first = std::min(first, at);
      last = at + bytes.size();
    }
    at += bytes.size();
  });
  if (first == text.size() && (left || right)) return "";
  const std::size_t begin = left ? first : 0;
  return text.substr(begin, (right ? last : text.size()) - begin);
}

std::function<std::string(std::string, bool)> replacement(const JsonCursor& value) {
  const std::string with = value["content"].text();
  const JsonCursor pattern = value["pattern"];
  if (const auto literal = pattern.find("String")) {
    const std::string what = literal->text();
    if (what.empty()) literal->fail("the empty text cannot be replaced");
    return [what, with](const std::string& text, bool) { return replace_all(text, what, with); };
  }
  const JsonCursor regex = pattern["Regex"];
  const auto compiled = std::make_shared<SplitPattern>(regex.text(), regex.place());
  return [compiled, with](const std::string& text, bool) {
    std::string out;
    compiled->cut(text, [&](std::string_view piece, bool match) { out += match ? with : piece; });
    return out;
  };
}

}  // namespace

Normalizer::Normalizer(const JsonCursor& value) : description_(value.raw().dump()) { add(value); }

std::string Normalizer::apply(std::string text, bool begins) const {
  for (const Step& step : steps_) text = step(std::move(text), begins);
  return text;
}

void Normalizer::add(const JsonCursor& value) {
  const std::string& type = value["type"].text();
  const auto form = [&](NormalForm which) {
    steps_.emplace_back(
        [which](const std::string& text, bool) { return normal_form(text, which); });
  };
  if (type == "Sequence") {
    value["normalizers"].for_each_item([&](const JsonCursor& each) { add(each); });
  } else if (type == "BertNormalizer") {
    add_bert(value);
  } else if (type == "NFC") {
    form(NormalForm::nfc);
  } else if (type == "NFD") {
    form(NormalForm::nfd);
  } else if (type == "NFKC") {
    form(NormalForm::nfkc);
  } else if (type == "NFKD") {
    form(NormalForm::nfkd);
  } else if (type == "Lowercase") {
    steps_.emplace_back([](const std::string& text, bool) { return lower(text); });
  } else if (type == "StripAccents") {
    steps_.emplace_back([](const std::string& text, bool) { return without(text, is_mark); });
  } else if (type == "Strip") {
    const bool left = value.flag("strip_left", true), right = value.flag("strip_right", true);
    steps_.emplace_back([=](const std::string& text, bool) { return stripped(text, left, right); });
  } else if (type == "Prepend") {
    steps_.emplace_back([prefix = value["prepend"].text()](const std::string& text, bool begins) {
      return text.empty() || !begins ? text : prefix + text;
    });
  } else if (type == "Replace") {
    steps_.push_back(replacement(value));
  } else if (type == "Precompiled") {
    const auto map = std::make_shared<Charsmap>(value["precompiled_charsmap"]);
    steps_.emplace_back([map](const std::string& text, bool) { return map->apply(text); });
  } else {
    value["type"].unsupported(fmt::format(
        "the normalizer \"{}\" is not supported; allowed: Sequence, BertNormalizer, NFC, NFD, "
        "NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend, Replace and Precompiled",
        type));
  }
}

// Devlin et al. 2019: text is cleaned, ideographs stand alone, then accents and upper case go.
void Normalizer::add_bert(const JsonCursor& value) {
  const bool lowercase = value.flag("lowercase", true);
  if (value.flag("clean_text", true))
    steps_.emplace_back([](const std::string& text, bool) { return cleaned(text); });
  if (value.flag("handle_chinese_chars", true))
    steps_.emplace_back([](const std::string& text, bool) { return spaced_ideographs(text); });
  if (value.flag("strip_accents", lowercase)) {
    steps_.emplace_back([](const std::string& text, bool) {
      return without(normal_form(text, NormalForm::nfd), is_nonspacing_mark);
    });
  }
  if (lowercase) steps_.emplace_back([](const std::string& text, bool) { return lower(text); });
}

}  // namespace tessera::io
