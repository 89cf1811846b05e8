#include "io/token_model_json.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "core/error.hpp"
#include "io/unicode.hpp"

namespace tessera::io {
namespace {

using Ids = std::unordered_map<std::string, std::int32_t>;

void refuse_text(const JsonCursor& object, std::string_view key) {
  const auto value = object.find(key);
  if (value && !value->text().empty()) {
    value->unsupported(fmt::format("\"{}\" is not supported; allowed: null", value->text()));
  }
}

Ids parse_vocabulary(const JsonCursor& vocab) {
  Ids ids;
  std::unordered_map<std::int32_t, bool> taken;
  vocab.for_each_member([&](const std::string& token, const JsonCursor& value) {
    const std::int32_t id = token_id(value);
    if (!taken.emplace(id, true).second) value.fail(fmt::format("two tokens have the id {}", id));
    ids.emplace(token, id);
  });
  return ids;
}

/// The id of a token that another key names.
std::int32_t named_id(const JsonCursor& name, const Ids& ids) {
  const auto found = ids.find(name.text());
  if (found == ids.end()) name.fail(fmt::format("{} is not in the vocabulary", name.shown()));
  return found->second;
}

/// ["a", "b"], or "a b" in older files.
std::pair<std::string, std::string> merge_pair(const JsonCursor& merge) {
  if (merge.is_array() && merge.size() == 2) {
    const auto parts = merge.items(2, 2);
    return {parts[0].text(), parts[1].text()};
  }
  if (merge.is_text()) {
    const std::string& text = merge.text();
    const std::size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  merge.fail("expected two tokens: [\"a\", \"b\"] or \"a b\"");
}

void parse_merges(const JsonCursor& value, const Ids& ids, BpeModel& model) {
  std::int32_t rank = 0;
  value.for_each_item([&](const JsonCursor& merge) {
    const auto [left, right] = merge_pair(merge);
    const auto id = [&](const std::string& token) {
      const auto found = ids.find(token);
      if (found == ids.end()) merge.fail(fmt::format("\"{}\" is not in the vocabulary", token));
      return found->second;
    };
    const std::int32_t left_id = id(left), right_id = id(right);
    model.merges[BpeModel::pair_key(left_id, right_id)] = {rank++, id(left + right)};
  });
}

void parse_bytes(const JsonCursor& vocab, const Ids& ids, BpeModel& model) {
  for (const auto& [code_point, byte] : byte_alphabet()) {
    std::string name;
    append_utf8(code_point, name);
    const auto id = ids.find(name);
    if (id == ids.end()) {
      vocab.unsupported(
          fmt::format("no token for the byte {:#04x} (\"{}\"); all 256 are needed", byte, name));
    }
    model.byte_ids[byte] = id->second;
  }
}

/// The characters that precede a visible space in some token.
std::unordered_set<std::string> characters_before_space(const Ids& ids) {
  std::unordered_set<std::string> found;
  for (const auto& [token, id] : ids) {
    std::string_view last;
    for_each_character(token, [&](char32_t, std::string_view character) {
      if (character == kVisibleSpace && !last.empty()) found.emplace(last);
      last = character;
    });
  }
  return found;
}

/// Of tokens that are made of characters, as SentencePiece's are.
void parse_characters(const JsonCursor& value, const Ids& ids, BpeModel& model) {
  CharacterTokens& characters = model.characters.emplace();
  for (const auto& [token, id] : ids) {
    const auto first = first_utf8_char(token);
    if (first && first->length == token.size()) characters.ids.emplace(token, id);
  }
  if (const auto unknown = value.find("unk_token")) characters.unknown = named_id(*unknown, ids);
  characters.fuse_unknown = value.flag("fuse_unk");
  if (ids.contains(std::string(kVisibleSpace)))
    characters.before_space = characters_before_space(ids);
  characters.byte_ids.fill(-1);
  if (!value.flag("byte_fallback")) return;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(fmt::format("<0x{:02X}>", byte));
    if (found != ids.end()) characters.byte_ids[byte] = found->second;
  }
}

ModelDefinition parse_bpe(const JsonCursor& value, bool byte_level) {
  if (const auto dropout = value.find("dropout"); dropout && dropout->number() != 0) {
    dropout->unsupported("merge dropout is not supported; allowed: null");
  }
  refuse_text(value, "continuing_subword_prefix");
  refuse_text(value, "end_of_word_suffix");
  ModelDefinition made{.model = {}, .ids = parse_vocabulary(value["vocab"])};
  BpeModel model;
  if (byte_level) {
    refuse_flag(value, "byte_fallback");
    parse_bytes(value["vocab"], made.ids, model);
  } else {
    parse_characters(value, made.ids, model);
  }
  parse_merges(value["merges"], made.ids, model);
  if (value.flag("ignore_merges")) {
    for (const auto& [token, id] : made.ids) {
      const auto word = byte_level ? spelled_bytes(token) : token;
      if (word) model.whole_words.emplace(*word, id);
    }
  }
  made.model = std::move(model);
  return made;
}

ModelDefinition parse_word_piece(const JsonCursor& value) {
  ModelDefinition made{.model = {}, .ids = parse_vocabulary(value["vocab"])};
  WordPieceModel model{.ids = made.ids, .unknown = named_id(value["unk_token"], made.ids)};
  model.continuing = value["continuing_subword_prefix"].text();
  if (const auto longest = value.find("max_input_chars_per_word"))
    model.longest_word = longest->integer(0);
  for (const auto& [token, id] : made.ids)
    model.longest_token = std::max(model.longest_token, token.size());
  made.model = std::move(model);
  return made;
}

/// The number that the `tokenizers` package reads where JSON has this one: its digits, rounded to a
/// double, times or over a power of ten, rounded again. Ways to cut a word that are as likely by
/// exact numbers differ by such a last bit.
double read_in_two_steps(double exact) {
  std::array<char, 32> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), exact, std::chars_format::scientific);
  std::uint64_t digits = 0;
  int exponent = 0;
  const char* at = text.data();
  bool fraction = false;
  for (; at != end.ptr && *at != 'e'; ++at) {
    if (*at == '.') fraction = true;
    if (*at < '0' || *at > '9') continue;
    digits = digits * 10 + static_cast<std::uint64_t>(*at - '0');
    if (fraction) --exponent;
  }
  int power = 0;
  if (at != end.ptr) std::from_chars(at[1] == '+' ? at + 2 : at + 1, end.ptr, power);
  exponent += power;
  const double scale = std::pow(10.0, std::abs(exponent));
  if (!std::isfinite(scale)) return exact;
  const double value =
      exponent >= 0 ? static_cast<double>(digits) * scale : static_cast<double>(digits) / scale;
  return std::signbit(exact) ? -value : value;
}

ModelDefinition parse_unigram(const JsonCursor& value) {
  ModelDefinition made;
  UnigramModel model;
  value["vocab"].for_each_item([&](const JsonCursor& row) {
    const auto parts = row.items(2, 2);
    const double score = read_in_two_steps(parts[1].number());
    if (!std::isfinite(score)) parts[1].expected("a finite number");
    made.ids[parts[0].text()] = static_cast<std::int32_t>(model.tokens.size());
    model.tokens.emplace_back(parts[0].text(), score);
  });
  const auto most = static_cast<std::int64_t>(model.tokens.size()) - 1;
  if (most < 0 || most >= INT32_MAX) value["vocab"].expected("from 1 to 2^31 - 1 tokens");
  if (const auto unknown = value.find("unk_id"))
    model.unknown = static_cast<std::int32_t>(unknown->integer(0, most));
  model.byte_fallback = value.flag("byte_fallback");
  made.model = std::move(model);
  return made;
}

}  // namespace

std::int32_t token_id(const JsonCursor& value) {
  const std::int64_t id = value.integer();
  if (id < 0 || id >= INT32_MAX) {
    value.fail(fmt::format("token id {}; allowed: 0 to {}", id, INT32_MAX - 1));
  }
  return static_cast<std::int32_t>(id);
}

void refuse_flag(const JsonCursor& object, std::string_view key) {
  if (object.flag(key)) {
    object[key].unsupported("true is not supported; allowed: false");
  }
}

const std::unordered_map<char32_t, std::uint8_t>& byte_alphabet() {
  static const auto kAlphabet = [] {
    std::unordered_map<char32_t, std::uint8_t> bytes;
    char32_t next = 0x100;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
      bytes[printable ? byte : next++] = static_cast<std::uint8_t>(byte);
    }
    return bytes;
  }();
  return kAlphabet;
}

std::optional<std::string> spelled_bytes(std::string_view name) {
  std::string bytes;
  while (const auto character = first_utf8_char(name)) {
    const auto byte = byte_alphabet().find(character->code_point);
    if (byte == byte_alphabet().end()) return std::nullopt;
    bytes += static_cast<char>(byte->second);
    name.remove_prefix(character->length);
  }
  return bytes;
}

ModelDefinition parse_token_model(const JsonCursor& value, bool byte_level) {
  const auto type = value.find("type");
  if (!type || type->text() == "BPE") return parse_bpe(value, byte_level);
  if (!byte_level && type->text() == "WordPiece") return parse_word_piece(value);
  if (!byte_level && type->text() == "Unigram") return parse_unigram(value);
  type->unsupported(fmt::format("\"{}\" is not supported{}; allowed: {}", type->text(),
                                byte_level ? " behind the pre-tokenizer ByteLevel" : "",
                                byte_level ? "\"BPE\"" : "BPE, WordPiece and Unigram"));
}

}  // namespace tessera::io
