#include "io/tokenizer_json.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.hpp"
#include "io/json.hpp"
#include "io/utf8.hpp"

namespace tessera::io {
namespace {

// What ends a document, of tokenizers that are made here.
constexpr std::string_view kLearnedEnd = "<|endoftext|>";

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
    if (const auto normalizer = root.find("normalizer"))
      result_.normalizer = Normalizer(*normalizer);
    if (const auto pre_tokenizer = root.find("pre_tokenizer"))
      result_.pre_tokenizer = PreTokenizer(*pre_tokenizer);
    model(root["model"]);
    if (const auto added = root.find("added_tokens")) {
      added->for_each_item([&](const JsonCursor& token) { added_token(token); });
    }
    if (result_.pre_tokenizer.byte_level()) {
      result_.texts.behind = result_.names;
    } else {
      result_.texts = token_texts(result_.names, root.find("decoder"));
    }
    if (const auto processor = root.find("post_processor")) post_processor(*processor);
    for (const auto& [id, name] : result_.names) {
      result_.vocab = std::max(result_.vocab, std::int64_t{id} + 1);
    }
    return std::move(result_);
  }

 private:
  void model(const JsonCursor& value) {
    const bool byte_level = result_.pre_tokenizer.byte_level();
    ModelDefinition made = parse_token_model(value, byte_level);
    result_.model = std::move(made.model);
    ids_ = std::move(made.ids);
    for (const auto& [token, id] : ids_)
      result_.names.emplace(id, byte_level ? spelled_bytes(token).value_or(token) : token);
  }

  void added_token(const JsonCursor& token) {
    AddedToken added{.content = token["content"].text(),
                     .id = token_id(token["id"]),
                     .special = token.flag("special"),
                     .normalized = token.flag("normalized"),
                     .single_word = token.flag("single_word"),
                     .takes_left = token.flag("lstrip"),
                     .takes_right = token.flag("rstrip")};
    if (added.content.empty()) token["content"].fail("an added token cannot be empty");
    const auto known = ids_.find(added.content);
    const bool taken =
        known == ids_.end() ? result_.names.contains(added.id) : known->second != added.id;
    if (taken) {
      token["id"].fail(fmt::format("the id {} of \"{}\" disagrees with the vocabulary", added.id,
                                   added.content));
    }
    result_.names[added.id] = added.content;
    result_.added.push_back(std::move(added));
  }

  void post_processor(const JsonCursor& value) {
    const std::string& type = value["type"].text();
    if (type == "Sequence") {
      value["processors"].for_each_item([&](const JsonCursor& each) { post_processor(each); });
    } else if (type == "TemplateProcessing") {
      template_processing(value);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      for (const auto& [key, ids] :
           {std::pair{"cls", &result_.frame.before}, std::pair{"sep", &result_.frame.behind}}) {
        ids->push_back(known_id(value[key].items(2, 2)[1]));
      }
    } else if (type != "ByteLevel") {  // which changes offsets alone
      value["type"].unsupported(
          fmt::format("the post-processor \"{}\" is not supported; allowed: Sequence, ByteLevel, "
                      "TemplateProcessing, BertProcessing and RobertaProcessing",
                      type));
    }
  }

  void template_processing(const JsonCursor& value) {
    bool sequence = false;
    value["single"].for_each_item([&](const JsonCursor& piece) {
      if (piece.find("Sequence")) {
        if (std::exchange(sequence, true)) piece.fail("the text is there twice");
        return;
      }
      const JsonCursor special = value["special_tokens"][piece["SpecialToken"]["id"].text()]["ids"];
      special.for_each_item([&](const JsonCursor& id) {
        (sequence ? result_.frame.behind : result_.frame.before).push_back(known_id(id));
      });
    });
    if (!sequence) value["single"].fail("the text (\"Sequence\") is not there");
  }

  std::int32_t known_id(const JsonCursor& value) const {
    const std::int32_t id = token_id(value);
    if (!result_.names.contains(id)) value.fail(fmt::format("no token has the id {}", id));
    return id;
  }

  JsonDocument document_;
  TokenizerDefinition result_;
  std::unordered_map<std::string, std::int32_t> ids_;
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
