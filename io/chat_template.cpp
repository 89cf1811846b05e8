#include "io/chat_template.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/hash.hpp"
#include "io/file.hpp"
#include "io/replace_all.hpp"
#include "io/tokenizer_files.hpp"
#include "io/unicode.hpp"
#include "io/utf8.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t kLargestTemplate = std::int64_t{16} << 20;

struct BuiltIn {
  std::string_view name;
  std::uint64_t jinja;  // the hash of its models' chat_template, plain_jinja(); 0: none is known
  std::string_view text;
};
constexpr std::array kBuiltIn = {
    BuiltIn{"chatml", 0xa04f41d813a07b13,
            R"j({"special_tokens": ["<|im_start|>", "<|im_end|>"], "roles": {
"system": {"before": "<|im_start|>system\n", "end": "<|im_end|>", "after": "\n"},
"user": {"before": "<|im_start|>user\n", "end": "<|im_end|>", "after": "\n"},
"tool": {"before": "<|im_start|>tool\n", "end": "<|im_end|>", "after": "\n"},
"assistant": {"before": "<|im_start|>assistant\n", "end": "<|im_end|>", "after": "\n",
              "learned": true}}})j"},
    BuiltIn{"llama3", 0x9799ad6e2dea0594,
            R"j({"special_tokens": ["<|begin_of_text|>", "<|start_header_id|>",
"<|end_header_id|>", "<|eot_id|>"], "begin": "<|begin_of_text|>", "trim": true, "roles": {
"system": {"before": "<|start_header_id|>system<|end_header_id|>\n\n", "end": "<|eot_id|>"},
"user": {"before": "<|start_header_id|>user<|end_header_id|>\n\n", "end": "<|eot_id|>"},
"assistant": {"before": "<|start_header_id|>assistant<|end_header_id|>\n\n", "end": "<|eot_id|>",
              "learned": true}}})j"},
    BuiltIn{"gemma", 0x2c2e86beabccd2a4,
            R"j({"special_tokens": ["<bos>", "<start_of_turn>", "<end_of_turn>"],
"begin": "<bos>", "trim": true, "alternates": true, "roles": {
"system": {"after": "\n\n", "joins": true},
"user": {"before": "<start_of_turn>user\n", "after": "<end_of_turn>\n"},
"assistant": {"before": "<start_of_turn>model\n", "end": "<end_of_turn>", "after": "\n",
              "learned": true}}})j"},
    BuiltIn{"llama2", 0, R"j({"special_tokens": ["<s>", "</s>"], "trim": true,
"trim_joined": true, "alternates": true,
"roles": {"system": {"before": "<<SYS>>\n", "after": "\n<</SYS>>\n\n", "joins": true},
"user": {"before": "<s>[INST] ", "after": " [/INST]"},
"assistant": {"begin": " ", "end": " </s>", "learned": true}}})j"},
    BuiltIn{"mistral", 0xa5d004210ebce758, R"j({"special_tokens": ["<s>", "</s>"],
"optional_tokens": ["[INST]", "[/INST]"], "begin": "<s>", "alternates": true,
"roles": {"user": {"before": "[INST] ", "after": " [/INST]"},
"assistant": {"end": "</s>", "learned": true}}})j"},
    BuiltIn{"phi3", 0,
            R"j({"special_tokens": ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>",
"<|endoftext|>"], "end": "<|endoftext|>", "roles": {"system": {"before": "<|system|>\n", "end": "<|end|>", "after": "\n"},
"user": {"before": "<|user|>\n", "end": "<|end|>", "after": "\n"},
"assistant": {"before": "<|assistant|>\n", "end": "<|end|>", "after": "\n",
              "learned": true}}})j"},
    BuiltIn{"plain", 0, R"j({"roles": {"system": {"after": "\n\n"},
"user": {"before": "User:\n", "after": "\n\n"},
"assistant": {"before": "Assistant:\n", "end": "{eos}", "after": "\n\n", "learned": true}}})j"},
    BuiltIn{"alpaca", 0, R"j({"parts": [
{"if": "input", "text": "Below is an instruction that describes a task, paired with an input that provides further context. Write a response that appropriately completes the request.\n\n"},
{"unless": "input", "text": "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"},
{"text": "### Instruction:\n{instruction}\n\n"},
{"if": "input", "text": "### Input:\n{input}\n\n"},
{"text": "### Response:\n"}, {"text": "{output}{eos}", "learned": true}]})j"},
    BuiltIn{"completion", 0, R"j({"parts": [{"text": "{prompt}"},
{"text": "{completion}{eos}", "learned": true}]})j"}};

/// A Jinja text in which line ends are such, whether a file has them so or as \\n.
std::string plain_jinja(std::string_view jinja) { return replace_all(jinja, "\\n", "\n"); }

/// Without what Python's str.strip(), which templates trim by, takes from both ends.
std::string_view trimmed(std::string_view text) {
  const auto is_taken = [](char32_t c) { return is_white_space(c) || (c >= 0x1c && c <= 0x1f); };
  text.remove_prefix(bytes_at_begin(text, is_taken));
  text.remove_suffix(bytes_at_end(text, is_taken));
  return text;
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

std::vector<std::string_view> ChatTemplate::names() {
  std::vector<std::string_view> names;
  for (const BuiltIn& built_in : kBuiltIn) names.push_back(built_in.name);
  return names;
}

std::optional<std::string_view> ChatTemplate::recognised(std::string_view jinja) {
  const auto found = std::ranges::find(kBuiltIn, hash_text(plain_jinja(jinja)), &BuiltIn::jinja);
  if (found == kBuiltIn.end()) return std::nullopt;
  return found->name;
}

std::string recognised_template(const std::filesystem::path& tokenizer_json,
                                std::string_view option) {
  const auto jinja = chat_template_of(tokenizer_json);
  const auto found = jinja ? ChatTemplate::recognised(*jinja) : std::nullopt;
  if (found) return std::string(*found);
  throw DeckError(fmt::format(
      "{} auto: {} {}: name one of {}, or a JSON file", option,
      tokenizer_config_of(tokenizer_json).string(),
      jinja ? "has a chat_template that is none of the known ones" : "has no chat_template",
      fmt::join(ChatTemplate::names(), ", ")));
}

ChatTemplate ChatTemplate::open(const std::string& name) {
  const auto built_in = std::ranges::find(kBuiltIn, name, &BuiltIn::name);
  if (built_in != kBuiltIn.end()) return parse(built_in->text, name);
  if (!name.ends_with(".json")) {
    throw DeckError(fmt::format("no chat template is called {}: there are {}, and JSON files", name,
                                fmt::join(names(), ", ")));
  }
  return parse(read_text(name, kLargestTemplate), name);
}

ChatTemplate ChatTemplate::parse(std::string_view text, const std::string& name) {
  const JsonDocument document(text, name);
  const JsonCursor root = document.root();
  ChatTemplate made;
  made.name_ = name;
  const auto add_tokens = [&](const char* key, std::vector<std::string>& to) {
    const auto tokens = root.find(key);
    if (!tokens) return;
    tokens->for_each_item([&](const JsonCursor& token) {
      if (token.text().empty()) token.fail("a special token cannot be empty");
      to.push_back(token.text());
    });
  };
  add_tokens("optional_tokens", made.optional_);
  made.special_ = made.optional_;
  add_tokens("special_tokens", made.special_);
  // At each place the longest one is found.
  std::ranges::sort(made.special_, std::greater<>(), &std::string::size);
  if (const auto parts = root.find("parts")) {
    allow_only(root, {"special_tokens", "optional_tokens", "parts"});
    parts->for_each_item([&](const JsonCursor& p) { made.parts_.push_back(made.parse_part(p)); });
  } else {
    allow_only(root, {"special_tokens", "optional_tokens", "begin", "end", "trim", "trim_joined",
                      "alternates", "roles"});
    made.begin_ = made.optional_text(root, "begin");
    made.end_ = made.optional_text(root, "end");
    made.trim_ = root.flag("trim");
    made.trim_joined_ = root.flag("trim_joined");
    made.alternates_ = root.flag("alternates");
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
  allow_only(role, {"before", "begin", "end", "after", "learned", "joins"});
  if (role.flag("joins") && (role.flag("learned") || role.find("begin") || role.find("end")))
    role.fail("what joins the next turn is not learned, and has no \"begin\" or \"end\"");
  return {.before = optional_text(role, "before"),
          .begin = optional_text(role, "begin"),
          .end = optional_text(role, "end"),
          .after = optional_text(role, "after"),
          .learned = role.flag("learned"),
          .joins = role.flag("joins")};
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
  for (const auto& [name, role] : roles_)
    visit(role.before), visit(role.begin), visit(role.end), visit(role.after);
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
      if (std::ranges::find(optional_, token) != optional_.end()) continue;  // it is text
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

/// The turns of a conversation, one after another, as they become pieces.
class ChatTemplate::Turns {
 public:
  Turns(const ChatTemplate& of, const JsonCursor& line, std::vector<TemplatePiece>& pieces)
      : of_(of), pieces_(pieces) {
    of_.add(of_.begin_, false, line, pieces_);
  }

  /// A message. Learned roles of a prompt are not learned.
  void add(const JsonCursor& turn, bool of_prompt) {
    const bool shared = turn.find("from").has_value();  // ShareGPT's names
    const JsonCursor name = turn[shared ? "from" : "role"];
    add(of_.role_of(name), turn[shared ? "value" : "content"].text(), turn, of_prompt);
  }
  /// What a role says; `place` for messages.
  void add(const Role& role, const std::string& content, const JsonCursor& place, bool of_prompt) {
    check_order(role, place);
    last_ = &role;
    const bool learned = role.learned && !of_prompt;
    if (role.joins) {
      of_.add(role.before, false, place, joining_);
      joining_.push_back({content, std::nullopt, false});
      of_.add(role.after, false, place, joining_);
      return;
    }
    of_.add(role.before, false, place, pieces_);
    std::string whole = content;
    const auto is_token = [](const TemplatePiece& piece) { return piece.token.has_value(); };
    if (of_.trim_joined_ && std::ranges::none_of(joining_, is_token)) {
      std::string joined;
      for (const TemplatePiece& piece : joining_) joined += piece.text;
      whole.insert(0, joined);
    } else {
      std::ranges::move(joining_, std::back_inserter(pieces_));
    }
    joining_.clear();
    const std::string_view said = of_.trim_ ? trimmed(whole) : whole;
    of_.add(role.begin, learned, place, pieces_);
    pieces_.push_back({std::string(said), std::nullopt, learned});
    of_.add(role.end, learned, place, pieces_);
    of_.add(role.after, false, place, pieces_);
    learned_ += learned ? 1 : 0;
    says_something_ = says_something_ || (learned && !said.empty());
  }

  /// What comes before a role's turn. It says the rest itself.
  void begin_answer(const Role& role, const JsonCursor& place) {
    if (last_ == &role) place.fail("it ends with an answer, so there is none to make");
    check_joined(place);
    check_order(role, place);
    of_.add(role.before, false, place, pieces_);
  }

  void finish(const JsonCursor& line) {
    check_joined(line);
    of_.add(of_.end_, false, line, pieces_);
  }
  /// How many turns are learned, and whether any of them says something.
  std::int64_t learned() const { return learned_; }
  bool says_something() const { return says_something_; }

 private:
  void check_joined(const JsonCursor& place) const {
    if (joining_.empty()) return;
    place.fail(fmt::format("it ends with a turn that the template {} puts into the one behind it",
                           of_.name_));
  }
  void check_order(const Role& role, const JsonCursor& place) {
    const bool system = &role == of_.find_role("system");
    if (of_.alternates_ && system && turns_ > 0)
      place.fail(fmt::format("the template {} has a system prompt at the begin alone", of_.name_));
    if (system) {
      ++turns_;
      return;
    }
    if (of_.alternates_ && role.learned != (spoken_ % 2 == 1)) {
      place.fail(fmt::format("the template {} allows user and assistant by turns, the user first",
                             of_.name_));
    }
    ++turns_, ++spoken_;
  }

  const ChatTemplate& of_;
  std::vector<TemplatePiece>& pieces_;
  std::vector<TemplatePiece> joining_;  // the next turn
  const Role* last_ = nullptr;
  std::int64_t turns_ = 0, spoken_ = 0, learned_ = 0;
  bool says_something_ = false;
};

std::vector<TemplatePiece> ChatTemplate::render(const JsonCursor& line,
                                                const std::string& field) const {
  std::vector<TemplatePiece> pieces;
  if (roles_.empty()) {
    add_parts(line, "", pieces);
    return pieces;
  }
  auto turns = line.find(field.empty() ? "messages" : field);
  if (!turns && field.empty()) turns = line.find("conversations");
  if (!turns)
    line.fail(field.empty() ? "neither \"messages\" nor \"conversations\" is there"
                            : fmt::format("\"{}\" is missing", field));
  if (!turns->is_array() || turns->size() == 0) turns->expected("an array of messages");
  Turns all(*this, line, pieces);
  turns->for_each_item([&](const JsonCursor& turn) { all.add(turn, /*of_prompt=*/false); });
  all.finish(*turns);
  if (all.learned() > 0 && !all.says_something())
    turns->fail("the turns to learn from say nothing");
  if (all.learned() == 0)
    turns->fail(fmt::format("no turn of it is of a role that the template {} learns ({})", name_,
                            fmt::join(learned_roles(), ", ")));
  return pieces;
}

std::array<std::vector<TemplatePiece>, 2> ChatTemplate::render_pair(const JsonCursor& line) const {
  return {render_answer(line, "chosen"), render_answer(line, "rejected")};
}

/// The messages at the begin of a pair's answers that both have.
static std::int64_t common_turns(const JsonCursor& chosen, const JsonCursor& rejected) {
  std::int64_t common = 0;
  const nlohmann::json &a = chosen.raw(), &b = rejected.raw();
  while (common < chosen.size() && common < rejected.size() &&
         a[static_cast<std::size_t>(common)] == b[static_cast<std::size_t>(common)])
    ++common;
  return common;
}

/// How many messages at an answer's begin are the prompt, which stands beside it too: all messages
/// of the prompt, or up to a user's that says its text.
static std::int64_t repeated_turns(const JsonCursor& answer, const JsonCursor& prompt) {
  const nlohmann::json &said = answer.raw(), &before = prompt.raw();
  if (prompt.is_array()) {
    const bool repeats =
        answer.size() > prompt.size() && std::equal(before.begin(), before.end(), said.begin());
    return repeats ? prompt.size() : 0;
  }
  for (std::size_t i = 0; i + 1 < said.size(); ++i) {
    if (!said[i].is_object()) return 0;
    const bool shared = said[i].contains("from");
    const auto content = said[i].find(shared ? "value" : "content");
    if (content != said[i].end() && *content == before) return static_cast<std::int64_t>(i) + 1;
    const auto role = said[i].find(shared ? "from" : "role");
    if (role == said[i].end() || *role != "system") return 0;
  }
  return 0;
}

std::vector<TemplatePiece> ChatTemplate::render_answer(const JsonCursor& line,
                                                       const std::string& answer) const {
  std::vector<TemplatePiece> pieces;
  const JsonCursor said = line[answer];
  if (roles_.empty()) {
    if (said.text().empty()) said.fail("an answer that says nothing");
    add_parts(line, answer, pieces);
    return pieces;
  }
  Turns all(*this, line, pieces);
  std::int64_t of_prompt = 0;  // messages of the answer
  if (said.is_array() && line.find("prompt"))
    of_prompt = repeated_turns(said, *line.find("prompt"));
  if (of_prompt > 0) {
    // The answer says the prompt too.
  } else if (const auto prompt = line.find("prompt")) {
    add_prompt(*prompt, all);
  } else if (line["chosen"].is_array() && line["rejected"].is_array()) {
    of_prompt = common_turns(line["chosen"], line["rejected"]);
    if (of_prompt == 0)
      line.fail("\"prompt\" is missing, and the answers have no message in common at their begin");
  } else {
    line.fail("\"prompt\" is missing");
  }
  if (said.is_text()) {
    all.add(role_named("assistant"), said.text(), said, false);
  } else {
    if (!said.is_array()) said.expected("a text or messages");
    std::int64_t turn = 0;
    said.for_each_item([&](const JsonCursor& each) { all.add(each, turn++ < of_prompt); });
  }
  all.finish(said);
  if (!all.says_something())
    said.fail("an answer that says nothing: the assistant has no turn in it, or an empty one");
  return pieces;
}

void ChatTemplate::add_prompt(const JsonCursor& prompt, Turns& turns) const {
  if (prompt.is_text()) return turns.add(role_named("user"), prompt.text(), prompt, true);
  if (!prompt.is_array() || prompt.size() == 0) prompt.expected("a text or messages");
  prompt.for_each_item([&](const JsonCursor& turn) { turns.add(turn, true); });
}

std::vector<TemplatePiece> ChatTemplate::render_prompt(const JsonCursor& line,
                                                       const std::string& field) const {
  std::vector<TemplatePiece> pieces;
  if (roles_.empty()) {
    for (const Part* part : parts_of(line)) {
      if (part->learned) break;
      add(part->text, false, line, pieces);
    }
    return pieces;
  }
  std::optional<JsonCursor> prompt;
  for (const std::string_view name : kPromptMembers)
    if (field.empty() && !prompt) prompt = line.find(name);
  if (!field.empty()) prompt = line[field];
  if (!prompt) line.fail("none of \"messages\", \"conversations\" and \"prompt\" is there");
  Turns all(*this, line, pieces);
  add_prompt(*prompt, all);
  all.begin_answer(role_named("assistant"), *prompt);
  return pieces;
}

void ChatTemplate::add(const Text& text, bool learned, const JsonCursor& line,
                       std::vector<TemplatePiece>& pieces, const std::string& answer) const {
  for (const Token& token : text) {
    const auto id = token.kind == Token::Kind::special ? ids_.find(token.text) : ids_.end();
    switch (token.kind) {
      case Token::Kind::text: pieces.push_back({token.text, std::nullopt, learned}); break;
      case Token::Kind::special:
        if (id == ids_.end()) {  // an optional one that the tokenizer does not have
          pieces.push_back({token.text, std::nullopt, learned});
        } else {
          pieces.push_back({"", id->second, learned});
        }
        break;
      case Token::Kind::eos: pieces.push_back({"", eos_, learned}); break;
      case Token::Kind::member:
        pieces.push_back(
            {line[learned && !answer.empty() ? answer : token.text].text(), std::nullopt, learned});
        break;
    }
  }
}

std::vector<std::string> ChatTemplate::learned_roles() const {
  std::vector<std::string> names;
  for (const auto& [name, role] : roles_)
    if (role.learned) names.push_back(name);
  return names;
}

const ChatTemplate::Role* ChatTemplate::find_role(const std::string& name) const {
  const auto found = roles_.find(name);
  return found == roles_.end() ? nullptr : &found->second;
}

const ChatTemplate::Role& ChatTemplate::role_named(const std::string& name) const {
  const Role* role = find_role(name);
  if (role == nullptr || role->learned != (name == "assistant")) {
    throw DeckError(fmt::format(
        "--chat {}: it has no roles user and assistant, of which the latter is learned: give "
        "prompt and answers as messages",
        name_));
  }
  return *role;
}

const ChatTemplate::Role& ChatTemplate::role_of(const JsonCursor& name) const {
  std::string role = name.text();
  if (role == "human") role = "user";
  if (role == "gpt") role = "assistant";
  if (const Role* found = find_role(role)) return *found;
  std::vector<std::string> known;
  for (const auto& [each, _] : roles_) known.push_back(each);
  name.fail(fmt::format("{} is no role of the template {}; allowed: {}", name.shown(), name_,
                        fmt::join(known, ", ")));
}

void ChatTemplate::add_parts(const JsonCursor& line, const std::string& answer,
                             std::vector<TemplatePiece>& pieces) const {
  for (const Part* part : parts_of(line)) add(part->text, part->learned, line, pieces, answer);
}

std::vector<const ChatTemplate::Part*> ChatTemplate::parts_of(const JsonCursor& line) const {
  std::vector<const Part*> parts;
  for (const Part& part : parts_) {
    if (part.if_member && !has_text(line, *part.if_member)) continue;
    if (part.unless_member && has_text(line, *part.unless_member)) continue;
    parts.push_back(&part);
  }
  return parts;
}

}  // namespace tessera::io
