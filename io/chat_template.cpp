#include "io/chat_template.hpp"

#include <algorithm>
#include <array>

#include "core/error.hpp"
#include "io/file.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t kLargestTemplate = std::int64_t{16} << 20;

struct BuiltIn {
  std::string_view name, text;
};
constexpr std::array kBuiltIn = {
    BuiltIn{"chatml", R"j({"special_tokens": ["<|im_start|>", "<|im_end|>"], "roles": {
"system": {"before": "<|im_start|>system\n", "end": "<|im_end|>", "after": "\n"},
"user": {"before": "<|im_start|>user\n", "end": "<|im_end|>", "after": "\n"},
"tool": {"before": "<|im_start|>tool\n", "end": "<|im_end|>", "after": "\n"},
"assistant": {"before": "<|im_start|>assistant\n", "end": "<|im_end|>", "after": "\n",
              "learned": true}}})j"},
    BuiltIn{"llama3", R"j({"special_tokens": ["<|begin_of_text|>", "<|start_header_id|>",
"<|end_header_id|>", "<|eot_id|>"], "begin": "<|begin_of_text|>", "trim": true, "roles": {
"system": {"before": "<|start_header_id|>system<|end_header_id|>\n\n", "end": "<|eot_id|>"},
"user": {"before": "<|start_header_id|>user<|end_header_id|>\n\n", "end": "<|eot_id|>"},
"assistant": {"before": "<|start_header_id|>assistant<|end_header_id|>\n\n", "end": "<|eot_id|>",
              "learned": true}}})j"},
    BuiltIn{"plain", R"j({"roles": {"system": {"after": "\n\n"},
"user": {"before": "User:\n", "after": "\n\n"},
"assistant": {"before": "Assistant:\n", "end": "{eos}", "after": "\n\n", "learned": true}}})j"},
    BuiltIn{"alpaca", R"j({"parts": [
{"if": "input", "text": "Below is an instruction that describes a task, paired with an input that provides further context. Write a response that appropriately completes the request.\n\n"},
{"unless": "input", "text": "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"},
{"text": "### Instruction:\n{instruction}\n\n"},
{"if": "input", "text": "### Input:\n{input}\n\n"},
{"text": "### Response:\n"}, {"text": "{output}{eos}", "learned": true}]})j"},
    BuiltIn{"completion", R"j({"parts": [{"text": "{prompt}"},
{"text": "{completion}{eos}", "learned": true}]})j"}};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

void allow_only(const JsonCursor& object, std::initializer_list<std::string_view> keys) {
  object.for_each_member([&](const std::string& key, const JsonCursor& value) {
    if (std::ranges::find(keys, key) == keys.end())
      value.fail(fmt::format("not a key of a template here; allowed: {}", fmt::join(keys, ", ")));
  });
}

/// Whether a line has a string of that name that is not empty.
bool has_text(const JsonCursor& line, const std::string& member) {
  const auto value = line.find(member);
  return value && !value->text().empty();
}

}  // namespace

ChatTemplate ChatTemplate::open(const std::string& name) {
  const auto built_in = std::ranges::find(kBuiltIn, name, &BuiltIn::name);
  if (built_in != kBuiltIn.end()) return parse(built_in->text, name);
  if (!name.ends_with(".json")) {
    std::vector<std::string_view> names;
    for (const BuiltIn& b : kBuiltIn) names.push_back(b.name);
    throw DeckError(fmt::format("--chat {}: no such template; there are {}, and JSON files", name,
                                fmt::join(names, ", ")));
  }
  return parse(read_text(name, kLargestTemplate), name);
}

ChatTemplate ChatTemplate::parse(std::string_view text, const std::string& name) {
  const JsonDocument document(text, name);
  const JsonCursor root = document.root();
  ChatTemplate made;
  made.name_ = name;
  if (const auto special = root.find("special_tokens")) {
    special->for_each_item([&](const JsonCursor& token) {
      if (token.text().empty()) token.fail("a special token cannot be empty");
      made.special_.push_back(token.text());
    });
  }
  // At each place the longest one is found.
  std::ranges::sort(made.special_, std::greater<>(), &std::string::size);
  if (const auto parts = root.find("parts")) {
    allow_only(root, {"special_tokens", "parts"});
    parts->for_each_item([&](const JsonCursor& p) { made.parts_.push_back(made.parse_part(p)); });
  } else {
    allow_only(root, {"special_tokens", "begin", "end", "trim", "roles"});
    made.begin_ = made.optional_text(root, "begin");
    made.end_ = made.optional_text(root, "end");
    made.trim_ = root.flag("trim");
    root["roles"].for_each_member([&](const std::string& role, const JsonCursor& value) {
      made.roles_.emplace(role, made.parse_role(value));
    });
  }
  const auto learned = [](const auto& any) { return any.learned; };
  if (std::ranges::none_of(made.parts_, learned) &&
      std::ranges::none_of(made.roles_, [&](const auto& role) { return learned(role.second); })) {
    root.fail("nothing of it is \"learned\": true, so there is nothing to learn from it");
  }
  return made;
}

ChatTemplate::Text ChatTemplate::compile(const JsonCursor& value, bool members) const {
  Text text;
  const auto add_text = [&](std::string_view more) {
    if (text.empty() || text.back().kind != Token::Kind::text) text.push_back({});
    text.back().text += more;
  };
  for (std::string_view rest = value.text(); !rest.empty();) {
    const auto special = std::ranges::find_if(
        special_, [&](const std::string& token) { return rest.starts_with(token); });
    if (special != special_.end()) {
      text.push_back({Token::Kind::special, *special});
      rest.remove_prefix(special->size());
    } else if (rest.starts_with("{{") || rest.starts_with("}}")) {
      add_text(rest.substr(0, 1));
      rest.remove_prefix(2);
    } else if (rest[0] == '{' || rest[0] == '}') {
      const std::size_t end = rest.find('}');
      const std::string name(
          rest.substr(1, end == std::string_view::npos || end == 0 ? 0 : end - 1));
      if (name.empty()) value.fail("a single brace; {{ and }} stand for braces");
      if (name != "eos" && !members)
        value.fail(fmt::format("{{{}}}: only {{eos}} has a meaning here", name));
      text.push_back({name == "eos" ? Token::Kind::eos : Token::Kind::member, name});
      rest.remove_prefix(end + 1);
    } else {
      add_text(rest.substr(0, 1));
      rest.remove_prefix(1);
    }
  }
  return text;
}

ChatTemplate::Text ChatTemplate::optional_text(const JsonCursor& object,
                                               std::string_view key) const {
  const auto text = object.find(key);
  return text ? compile(*text, /*members=*/false) : Text();
}

ChatTemplate::Role ChatTemplate::parse_role(const JsonCursor& role) const {
  allow_only(role, {"before", "end", "after", "learned"});
  return {.before = optional_text(role, "before"),
          .end = optional_text(role, "end"),
          .after = optional_text(role, "after"),
          .learned = role.flag("learned")};
}

ChatTemplate::Part ChatTemplate::parse_part(const JsonCursor& part) const {
  allow_only(part, {"text", "learned", "if", "unless"});
  Part made{.text = compile(part["text"], /*members=*/true), .learned = part.flag("learned")};
  if (const auto member = part.find("if")) made.if_member = member->text();
  if (const auto member = part.find("unless")) made.unless_member = member->text();
  return made;
}

template <typename Visit>
void ChatTemplate::for_each_text(const Visit& visit) const {
  visit(begin_);
  for (const auto& [name, role] : roles_) visit(role.before), visit(role.end), visit(role.after);
  for (const Part& part : parts_) visit(part.text);
  visit(end_);
}

std::optional<std::string> ChatTemplate::learned_end() const {
  const auto single = [](const Text& text) -> std::optional<std::string> {
    if (text.empty() || text.back().kind != Token::Kind::special) return std::nullopt;
    return text.back().text;
  };
  for (const auto& [name, role] : roles_)
    if (role.learned) return single(role.end);
  for (auto part = parts_.rbegin(); part != parts_.rend(); ++part)
    if (part->learned) return single(part->text);
  return std::nullopt;
}

bool ChatTemplate::uses_eos() const {
  bool uses = false;
  for_each_text([&](const Text& text) {
    uses = uses || std::ranges::find(text, Token::Kind::eos, &Token::kind) != text.end();
  });
  return uses;
}

void ChatTemplate::bind(const Tokenizer& tokenizer) {
  const auto known = tokenizer.special_tokens();
  for (const std::string& token : special_) {
    const auto id = tokenizer.id_of(token);
    if (!id || std::ranges::find(known, token) == known.end()) {
      throw DeckError(fmt::format(
          "--chat {}: the tokenizer has no special token {}; its special tokens: {}", name_, token,
          known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))));
    }
    ids_[token] = *id;
  }
  eos_ = tokenizer.end_of_text();
  if (uses_eos() && !eos_) {
    throw DeckError(fmt::format(
        "--chat {}: it ends answers by the token that ends documents ({{eos}}), and there is none: "
        "choose one with --eos TOKEN",
        name_));
  }
}

std::vector<TemplatePiece> ChatTemplate::render(const JsonCursor& line,
                                                const std::string& field) const {
  std::vector<TemplatePiece> pieces;
  if (roles_.empty()) {
    add_parts(line, pieces);
    return pieces;
  }
  auto turns = line.find(field.empty() ? "messages" : field);
  if (!turns && field.empty()) turns = line.find("conversations");
  if (!turns)
    line.fail(field.empty() ? "neither \"messages\" nor \"conversations\" is there"
                            : fmt::format("\"{}\" is missing", field));
  if (!turns->is_array() || turns->size() == 0) turns->expected("an array of messages");
  add(begin_, false, line, pieces);
  turns->for_each_item([&](const JsonCursor& turn) { add_turn(turn, pieces); });
  add(end_, false, line, pieces);
  return pieces;
}

void ChatTemplate::add(const Text& text, bool learned, const JsonCursor& line,
                       std::vector<TemplatePiece>& pieces) const {
  for (const Token& token : text) {
    switch (token.kind) {
      case Token::Kind::text: pieces.push_back({token.text, std::nullopt, learned}); break;
      case Token::Kind::special: pieces.push_back({"", ids_.at(token.text), learned}); break;
      case Token::Kind::eos: pieces.push_back({"", eos_, learned}); break;
      case Token::Kind::member:
        pieces.push_back({line[token.text].text(), std::nullopt, learned});
        break;
    }
  }
}

void ChatTemplate::add_turn(const JsonCursor& turn, std::vector<TemplatePiece>& pieces) const {
  const bool shared = turn.find("from").has_value();  // ShareGPT's names
  const Role& role = role_of(turn[shared ? "from" : "role"]);
  const std::string& content = turn[shared ? "value" : "content"].text();
  add(role.before, false, turn, pieces);
  pieces.push_back({std::string(trim_ ? trimmed(content) : content), std::nullopt, role.learned});
  add(role.end, role.learned, turn, pieces);
  add(role.after, false, turn, pieces);
}

const ChatTemplate::Role& ChatTemplate::role_of(const JsonCursor& name) const {
  std::string role = name.text();
  if (role == "human") role = "user";
  if (role == "gpt") role = "assistant";
  const auto found = roles_.find(role);
  if (found != roles_.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [each, _] : roles_) known.push_back(each);
  name.fail(fmt::format("{} is no role of the template {}; allowed: {}", name.shown(), name_,
                        fmt::join(known, ", ")));
}

void ChatTemplate::add_parts(const JsonCursor& line, std::vector<TemplatePiece>& pieces) const {
  for (const Part& part : parts_) {
    if (part.if_member && !has_text(line, *part.if_member)) continue;
    if (part.unless_member && has_text(line, *part.unless_member)) continue;
    add(part.text, part.learned, line, pieces);
  }
}

}  // namespace tessera::io
