#include "io/pre_tokenizer.hpp"

#include <memory>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "io/cuts.hpp"
#include "io/split_pattern.hpp"
#include "io/unicode.hpp"

namespace tessera::io {
namespace {

// Radford et al. 2019; what ByteLevel means by use_regex.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Each character that `wanted` takes is a match.
template <typename Wanted>
std::vector<Cut> cuts_at(std::string_view text, const Wanted& wanted) {
  std::vector<Cut> cuts;
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    const bool match = wanted(c);
    if (match || cuts.empty() || cuts.back().match) {
      cuts.push_back({bytes, match});
    } else {
      std::string_view& last = cuts.back().text;
      last = {last.data(), last.size() + bytes.size()};
    }
  });
  return cuts;
}

/// Words, what is neither word nor space, and spaces, which go.
void cut_words(std::string_view text, const std::function<void(std::string_view)>& piece) {
  enum class Kind { space, word, other };
  Kind last = Kind::space;
  std::size_t begin = 0, at = 0;
  const auto end_piece = [&] {
    if (last != Kind::space && at > begin) piece(text.substr(begin, at - begin));
    begin = at;
  };
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    const Kind kind = is_white_space(c)      ? Kind::space
                      : is_word_character(c) ? Kind::word
                                             : Kind::other;
    if (kind != last) end_piece();
    last = kind;
    at += bytes.size();
  });
  end_piece();
}

std::vector<Cut> cuts_at_text(std::string_view text, std::string_view what) {
  std::vector<Cut> cuts;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t found = std::min(text.find(what, at), text.size());
    if (found > at) cuts.push_back({text.substr(at, found - at), false});
    if (found < text.size()) cuts.push_back({text.substr(found, what.size()), true});
    at = found + what.size();
  }
  return cuts;
}

}  // namespace

PreTokenizer::PreTokenizer(const JsonCursor& value) { add(value, /*last=*/true); }

void PreTokenizer::cut(std::string_view text, TextStart start, const Word& word) const {
  run(0, text, true, start, word);
}

void PreTokenizer::run(std::size_t step, std::string_view text, bool first, TextStart start,
                       const Word& word) const {
  if (text.empty()) return;
  if (step == steps_.size()) return word(text);
  if (step + 1 == steps_.size())
    return steps_[step](text, first, start, [&](std::string_view piece, bool) { word(piece); });
  steps_[step](text, first, start, [&](std::string_view piece, bool at_begin) {
    run(step + 1, piece, first && at_begin, start, word);
  });
}

void PreTokenizer::add_step(const std::string& description, Step step) {
  description_ += description + '\n';
  steps_.push_back(std::move(step));
}

void PreTokenizer::add(const JsonCursor& value, bool last) {
  const std::string& type = value["type"].text();
  const std::string description = value.raw().dump();
  /// Cuts at characters of one kind.
  const auto at_characters = [&](bool (*wanted)(char32_t), SplitBehavior behavior) {
    drops_text_ = drops_text_ || behavior == SplitBehavior::removed;
    add_step(description, [=](std::string_view text, bool, TextStart, const Piece& piece) {
      for_each_piece(cuts_at(text, wanted), behavior,
                     [&](std::string_view each) { piece(each, each.data() == text.data()); });
    });
  };
  if (type == "Sequence") {
    const JsonCursor steps = value["pretokenizers"];
    if (steps.size() == 0) steps.unsupported("no steps; at least one is needed");
    std::int64_t left = steps.size();
    steps.for_each_item([&](const JsonCursor& step) { add(step, --left == 0 && last); });
  } else if (type == "ByteLevel" && last) {
    add_byte_level(value);
  } else if (type == "Split") {
    add_split(value);
  } else if (type == "Metaspace") {
    add_metaspace(value);
  } else if (type == "Whitespace") {
    drops_text_ = true;
    add_step(description, [](std::string_view text, bool, TextStart, const Piece& piece) {
      cut_words(text, [&](std::string_view each) { piece(each, each.data() == text.data()); });
    });
  } else if (type == "WhitespaceSplit") {
    at_characters(is_white_space, SplitBehavior::removed);
  } else if (type == "BertPreTokenizer") {
    at_characters(is_white_space, SplitBehavior::removed);
    at_characters(is_punctuation, SplitBehavior::isolated);
  } else if (type == "Punctuation") {
    const auto behavior = value.find("behavior");
    at_characters(is_punctuation, behavior ? split_behavior(*behavior) : SplitBehavior::isolated);
  } else if (type == "Digits") {
    at_characters(is_numeric, value.flag("individual_digits", false) ? SplitBehavior::isolated
                                                                     : SplitBehavior::contiguous);
  } else {
    value["type"].unsupported(fmt::format(
        "\"{}\" here is not supported; allowed: Sequence, Split, Metaspace, Whitespace, "
        "WhitespaceSplit, BertPreTokenizer, Punctuation, Digits and, last, ByteLevel",
        type));
  }
}

void PreTokenizer::add_split(const JsonCursor& value) {
  const SplitBehavior behavior = split_behavior(value["behavior"]);
  drops_text_ = drops_text_ || behavior == SplitBehavior::removed;
  const bool invert = value.flag("invert", false);
  const JsonCursor pattern = value["pattern"];
  std::function<std::vector<Cut>(std::string_view)> cuts;
  if (const auto literal = pattern.find("String")) {
    if (literal->text().empty()) literal->fail("text cannot be cut at the empty text");
    cuts = [what = literal->text()](std::string_view text) { return cuts_at_text(text, what); };
  } else {
    const JsonCursor regex = pattern["Regex"];
    const auto compiled = std::make_shared<SplitPattern>(regex.text(), regex.place());
    if (behavior == SplitBehavior::isolated) {  // the usual one: nothing is to be put together
      return add_step("Split " + regex.text(),
                      [compiled](std::string_view text, bool, TextStart, const Piece& piece) {
                        compiled->cut(text, [&](std::string_view each, bool) {
                          piece(each, each.data() == text.data());
                        });
                      });
    }
    cuts = [compiled](std::string_view text) {
      std::vector<Cut> all;
      compiled->cut(text, [&](std::string_view each, bool match) { all.push_back({each, match}); });
      return all;
    };
  }
  add_step(value.raw().dump(), [=](std::string_view text, bool, TextStart, const Piece& piece) {
    std::vector<Cut> all = cuts(text);
    if (invert)
      for (Cut& cut : all)
        cut.match = !cut.match && first_utf8_char(cut.text);  // broken bytes stay
    for_each_piece(all, behavior,
                   [&](std::string_view each) { piece(each, each.data() == text.data()); });
  });
}

void PreTokenizer::add_byte_level(const JsonCursor& value) {
  byte_level_ = true;
  if (value.flag("add_prefix_space", true)) {
    if (!steps_.empty())
      value["add_prefix_space"].unsupported("true after another step is not supported");
    add_step("prefix space", [](std::string_view text, bool, TextStart start, const Piece& piece) {
      if (start == TextStart::text || text.starts_with(' ')) return piece(text, true);
      piece(std::string(1, ' ').append(text), true);
    });
  }
  if (!value.flag("use_regex", true)) return;
  const auto compiled = std::make_shared<SplitPattern>(kGpt2Pattern, value.place());
  add_step("Split " + std::string(kGpt2Pattern),
           [compiled](std::string_view text, bool, TextStart, const Piece& piece) {
             compiled->cut(text, [&](std::string_view each, bool) { piece(each, false); });
           });
}

// SentencePiece's (Kudo and Richardson 2018): spaces are visible, and words begin with them.
void PreTokenizer::add_metaspace(const JsonCursor& value) {
  enum class Prepend { always, first, never };
  const std::string mark = value["replacement"].text();
  Prepend prepend = value.flag("add_prefix_space", true) ? Prepend::always : Prepend::never;
  if (const auto scheme = value.find("prepend_scheme")) {
    const std::string& word = scheme->text();
    if (word != "always" && word != "first" && word != "never")
      scheme->fail(fmt::format("\"{}\"; allowed: always, first and never", word));
    prepend = word == "always"  ? Prepend::always
              : word == "first" ? Prepend::first
                                : Prepend::never;
  }
  const bool split = value.flag("split", true);
  add_step(value.raw().dump(),
           [=](std::string_view text, bool first, TextStart start, const Piece& piece) {
             std::string marked;
             for (const char c : text) c == ' ' ? marked += mark : marked += c;
             const bool wanted = prepend == Prepend::always ? !(first && start == TextStart::text)
                                                            : prepend == Prepend::first && first &&
                                                                  start == TextStart::document;
             if (wanted && !marked.starts_with(mark)) marked.insert(0, mark);
             if (!split) return piece(marked, true);
             const std::string_view all = marked;
             for_each_piece(cuts_at_text(all, mark), SplitBehavior::merged_with_next,
                            [&](std::string_view each) { piece(each, each.data() == all.data()); });
           });
}

}  // namespace tessera::io
