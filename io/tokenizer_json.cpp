#include "io/tokenizer_json.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "io/json.hpp"
#include "io/utf8.hpp"

namespace tessera::io {
namespace {

// Radford et al. 2019; what ByteLevel means by use_regex.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// What ends a document, of tokenizers that are made here.
constexpr std::string_view kLearnedEnd = "<|endoftext|>";

/// GPT-2's printable names of bytes: printable Latin-1 characters stand for themselves, the others
/// for the characters from U+0100 on.
std::unordered_map<char32_t, std::uint8_t> byte_alphabet() {
  std::unordered_map<char32_t, std::uint8_t> bytes;
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    bytes[printable ? byte : next++] = static_cast<std::uint8_t>(byte);
  }
  return bytes;
}

/// The bytes that a token's printable name spells; nothing if it has other characters (the
/// names of special tokens may: they stand for themselves).
std::optional<std::string> spelled_bytes(
    std::string_view name, const std::unordered_map<char32_t, std::uint8_t>& alphabet) {
  std::string bytes;
  while (const auto character = first_utf8_char(name)) {
    const auto byte = alphabet.find(character->code_point);
    if (byte == alphabet.end()) return std::nullopt;
    bytes += static_cast<char>(byte->second);
    name.remove_prefix(character->length);
  }
  return bytes;
}

std::int32_t token_id(const JsonCursor& value) {
  const std::int64_t id = value.integer();
  if (id < 0 || id >= INT32_MAX) {
    value.fail(fmt::format("token id {}; allowed: 0 to {}", id, INT32_MAX - 1));
  }
  return static_cast<std::int32_t>(id);
}

bool flag(const JsonCursor& object, std::string_view key) {
  const auto value = object.find(key);
  return value && value->boolean();
}

void refuse_flag(const JsonCursor& object, std::string_view key) {
  if (flag(object, key)) {
    object[key].fail("true is not supported; allowed: false");
  }
}

void refuse_text(const JsonCursor& object, std::string_view key) {
  const auto value = object.find(key);
  if (value && !value->text().empty()) {
    value->fail(fmt::format("\"{}\" is not supported; allowed: null", value->text()));
  }
}

/// A tokenizer.json of byte-level BPE, as Hugging Face's `tokenizers` writes them.
std::string byte_level_json(const nlohmann::json& added, const nlohmann::json& vocab,
                            const nlohmann::json& merges, bool use_regex) {
  const nlohmann::json byte_level = {{"type", "ByteLevel"},
                                     {"add_prefix_space", false},
                                     {"trim_offsets", false},
                                     {"use_regex", use_regex}};
  const nlohmann::json file = {{"version", "1.0"},
                               {"added_tokens", added},
                               {"normalizer", nullptr},
                               {"pre_tokenizer", byte_level},
                               {"post_processor", nullptr},
                               {"decoder", byte_level},
                               {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
  return file.dump() + "\n";
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& name) : document_(text, name) {}

  TokenizerDefinition parse() {
    const JsonCursor root = document_.root();
    normalizer(root);
    pre_tokenizer(root["pre_tokenizer"]);
    model(root["model"]);
    if (const auto added = root.find("added_tokens")) {
      added->for_each_item([&](const JsonCursor& token) { added_token(token); });
    }
    for (const auto& [id, bytes] : result_.bytes_of) {
      result_.vocab = std::max(result_.vocab, std::int64_t{id} + 1);
    }
    return std::move(result_);
  }

 private:
  void normalizer(const JsonCursor& root) {
    const auto value = root.find("normalizer");
    if (!value) return;
    if (const auto steps = value->find("normalizers"); steps && steps->size() == 0) return;
    (*value)["type"].fail(fmt::format("the normalizer \"{}\" is not supported; allowed: null",
                                      (*value)["type"].text()));
  }

  void pre_tokenizer(const JsonCursor& value) {
    std::vector<JsonCursor> steps;
    if (value["type"].text() == "Sequence") {
      value["pretokenizers"].for_each_item([&](const JsonCursor& step) { steps.push_back(step); });
    } else {
      steps.push_back(value);
    }
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const std::string& type = steps[i]["type"].text();
      const bool last = i + 1 == steps.size();
      if (type == "Split" && !last) {
        split(steps[i]);
      } else if (type == "ByteLevel" && last) {
        byte_level(steps[i], steps.size());
      } else {
        steps[i]["type"].fail(fmt::format(
            "\"{}\" here is not supported; allowed: any number of Split, then one ByteLevel "
            "(a byte-level BPE tokenizer)",
            type));
      }
    }
    if (steps.empty()) value.fail("no steps; allowed: any number of Split, then one ByteLevel");
  }

  void split(const JsonCursor& step) {
    if (const JsonCursor behavior = step["behavior"]; behavior.text() != "Isolated") {
      behavior.fail(fmt::format("\"{}\" is not supported; allowed: \"Isolated\"", behavior.text()));
    }
    refuse_flag(step, "invert");
    const JsonCursor regex = step["pattern"]["Regex"];
    result_.patterns.emplace_back(regex.text(), regex.place());
  }

  void byte_level(const JsonCursor& step, std::size_t steps) {
    result_.prefix_space = flag(step, "add_prefix_space");
    if (result_.prefix_space && steps > 1) {
      step["add_prefix_space"].fail("true after a Split is not supported; allowed: false");
    }
    const auto use_regex = step.find("use_regex");
    if (!use_regex || use_regex->boolean()) {
      result_.patterns.emplace_back(kGpt2Pattern, step.place());
    }
  }

  void model(const JsonCursor& value) {
    if (const auto type = value.find("type"); type && type->text() != "BPE") {
      type->fail(fmt::format("\"{}\" is not supported; allowed: \"BPE\"", type->text()));
    }
    if (const auto dropout = value.find("dropout"); dropout && dropout->number() != 0) {
      dropout->fail("merge dropout is not supported; allowed: null");
    }
    refuse_text(value, "continuing_subword_prefix");
    refuse_text(value, "end_of_word_suffix");
    refuse_flag(value, "byte_fallback");
    vocabulary(value["vocab"]);
    bytes(value["vocab"]);
    merges(value["merges"]);
    if (flag(value, "ignore_merges")) {
      for (const auto& [token, id] : ids_) {
        if (auto spelled = spelled_bytes(token, alphabet_)) {
          result_.model.whole_words.emplace(std::move(*spelled), id);
        }
      }
    }
  }

  void vocabulary(const JsonCursor& vocab) {
    vocab.for_each_member([&](const std::string& token, const JsonCursor& value) {
      const std::int32_t id = token_id(value);
      const auto [other, added] =
          result_.bytes_of.emplace(id, spelled_bytes(token, alphabet_).value_or(token));
      if (!added) value.fail(fmt::format("two tokens have the id {}", id));
      ids_.emplace(token, id);
    });
  }

  void bytes(const JsonCursor& vocab) {
    for (const auto& [code_point, byte] : alphabet_) {
      std::string name;
      append_utf8(code_point, name);
      const auto id = ids_.find(name);
      if (id == ids_.end()) {
        vocab.fail(
            fmt::format("no token for the byte {:#04x} (\"{}\"); all 256 are needed", byte, name));
      }
      result_.model.byte_ids[byte] = id->second;
    }
  }

  void merges(const JsonCursor& value) {
    std::int32_t rank = 0;
    value.for_each_item([&](const JsonCursor& merge) {
      const auto [left, right] = pair(merge);
      const auto id = [&](const std::string& token) {
        const auto found = ids_.find(token);
        if (found == ids_.end()) merge.fail(fmt::format("\"{}\" is not in the vocabulary", token));
        return found->second;
      };
      const std::int32_t left_id = id(left), right_id = id(right);
      result_.model.merges[BpeModel::pair_key(left_id, right_id)] = {rank++, id(left + right)};
    });
  }

  /// ["a", "b"], or "a b" in older files.
  static std::pair<std::string, std::string> pair(const JsonCursor& merge) {
    if (merge.is_array() && merge.size() == 2) {
      std::vector<std::string> parts;
      merge.for_each_item([&](const JsonCursor& part) { parts.push_back(part.text()); });
      return {parts[0], parts[1]};
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

  void added_token(const JsonCursor& token) {
    for (const auto* key : {"single_word", "lstrip", "rstrip"}) refuse_flag(token, key);
    AddedToken added{.content = token["content"].text(),
                     .id = token_id(token["id"]),
                     .special = flag(token, "special"),
                     .normalized = flag(token, "normalized")};
    if (added.content.empty()) token["content"].fail("an added token cannot be empty");
    const auto known = ids_.find(added.content);
    const bool taken =
        known == ids_.end() ? result_.bytes_of.contains(added.id) : known->second != added.id;
    if (taken) {
      token["id"].fail(fmt::format("the id {} of \"{}\" disagrees with the vocabulary", added.id,
                                   added.content));
    }
    result_.bytes_of[added.id] = added.content;
    result_.added.push_back(std::move(added));
  }

  JsonDocument document_;
  TokenizerDefinition result_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::unordered_map<char32_t, std::uint8_t> alphabet_ = byte_alphabet();
};

}  // namespace

TokenizerDefinition parse_tokenizer_json(std::string_view text, const std::string& name) {
  return Parser(text, name).parse();
}

std::string byte_tokenizer_json() {
  nlohmann::json vocab = nlohmann::json::object();
  for (const auto& [character, byte] : byte_alphabet()) {
    std::string name;
    append_utf8(character, name);
    vocab[name] = byte;
  }
  return byte_level_json(nlohmann::json::array(), vocab, nlohmann::json::array(),
                         /*use_regex=*/false);
}

std::string gpt2_tokenizer_json(std::span<const LearnedMerge> merges) {
  std::map<char32_t, std::uint8_t> by_character;
  for (const auto& [character, byte] : byte_alphabet()) by_character[character] = byte;
  std::array<std::string, 256> name_of;
  nlohmann::json vocab = nlohmann::json::object(), pairs = nlohmann::json::array();
  const auto add = [&](const std::string& name) { vocab.emplace(name, vocab.size()); };
  for (const auto& [character, byte] : by_character) {
    append_utf8(character, name_of[byte]);
    add(name_of[byte]);
  }
  const auto spell = [&](const std::string& bytes) {
    std::string name;
    for (const char byte : bytes) name += name_of[static_cast<unsigned char>(byte)];
    return name;
  };
  for (const auto& [left, right] : merges) {
    pairs.push_back(spell(left) + " " + spell(right));
    add(spell(left + right));
  }
  const nlohmann::json end = {
      {"id", vocab.size()}, {"content", kLearnedEnd}, {"single_word", false}, {"lstrip", false},
      {"rstrip", false},    {"normalized", false},    {"special", true}};
  add(std::string(kLearnedEnd));
  return byte_level_json(nlohmann::json::array({end}), vocab, pairs, /*use_regex=*/true);
}

}  // namespace tessera::io
