// Conversations, and instructions with their answers, into text of which it is known what the model
// shall learn to say. A template is one of the built-in ones or a JSON file:
//
//   {"special_tokens": ["<|im_start|>", "<|im_end|>"],      which of its strings are tokens
//    "begin": "", "end": "", "trim": false,                 around a conversation; of its contents
//    "roles": {"user": {"before": "<|im_start|>user\n", "after": "<|im_end|>\n"},
//              "assistant": {"before": "<|im_start|>assistant\n", "end": "<|im_end|>",
//                            "after": "\n", "learned": true}}}
//
// What a learned role says, its content between "begin" and "end", counts as target of the loss,
// and nothing else. "optional_tokens" are special tokens where the tokenizer has them, else text.
// "alternates": true allows a system turn at the begin alone, and then turns of which every second
// one is learned. A role with "joins": true, such as a system prompt of Gemma's, has no turn of its
// own: what it says, between "before" and "after" and never trimmed, goes before the content of the
// turn behind it. For other lines than conversations there are "parts" in place of "begin", "end",
// "trim" and "roles":
//
//   {"special_tokens": [], "parts": [{"text": "Question: {question}\n"},
//                                    {"text": "Hint: {hint}\n", "if": "hint"},
//                                    {"text": "{answer}{eos}", "learned": true}]}
//
// {NAME} is the string of that name in the line; a part with "if" (or "unless") is there only where
// the line has (or has not) such a string that is not empty. {eos}, in both kinds, is the token
// that ends documents; {{ and }} are braces.
//
// A line may also be a pair of answers to one prompt, {"prompt": ..., "chosen": ..., "rejected":
// ...}, which becomes two documents. Of conversations the prompt is a text, which the user says, or
// an array of messages, and an answer a text, which the assistant says, or an array of messages;
// without a prompt it is what both answers have in common at their begin. For "parts" an answer
// takes the place of what learned parts name. Of a pair only the answers are learned.
//
// Or a line is what is to be answered: a conversation that ends with another's turn, a prompt
// alone, or what parts before the first learned one name. It becomes all that comes before the
// answer.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.hpp"
#include "io/tokenizer.hpp"

namespace tessera::io {

/// Of what a template makes: text, in which nothing is a special token, or one special token.
struct TemplatePiece {
  std::string text;
  std::optional<std::int32_t> token;
  bool learned = false;
};

/// Where a line's prompt is, if nothing else is said: in the first of these that it has.
inline constexpr std::array<std::string_view, 3> kPromptMembers = {"messages", "conversations",
                                                                   "prompt"};

/// The word for the template that recognised_template() finds.
inline constexpr auto kRecognisedTemplate = "auto";
/// The name of the built-in template that makes what the chat_template beside a tokenizer.json
/// does. DeckError where there is none, or none that is known; `option` is what has asked for it.
std::string recognised_template(const std::filesystem::path& tokenizer_json,
                                std::string_view option);

class ChatTemplate {
 public:
  /// One of names(), or a JSON file. DeckError for another
  /// word, DataError, naming file and place, for a file that is no template.
  static ChatTemplate open(const std::string& name);
  static std::vector<std::string_view> names();
  /// Which of these makes the tokens of a chat_template, the Jinja text of a tokenizer_config.json,
  /// wherever that makes any; nothing for a text that is not known.
  static std::optional<std::string_view> recognised(std::string_view jinja);

  /// The special token that ends what is learned, where one does.
  std::optional<std::string> learned_end() const;
  /// Finds the special tokens. DeckError that names the first that the tokenizer does not have.
  void bind(const Tokenizer& tokenizer);

  /// A line of JSON in pieces, after bind(). Of a conversation: the member `field`, or where that
  /// is empty "messages" or "conversations", an array of {"role", "content"} or {"from", "value"},
  /// where "human" and "gpt" are user and assistant. DataError, naming the place, for another.
  /// Whether it reads conversations, turn by turn, rather than fields that it names.
  bool has_turns() const { return !roles_.empty(); }
  std::vector<TemplatePiece> render(const JsonCursor& line, const std::string& field) const;
  /// A line with a pair of answers: what its prompt makes with the chosen one, and with the
  /// rejected one. DataError as of render(), and for answers that say nothing.
  std::array<std::vector<TemplatePiece>, 2> render_pair(const JsonCursor& line) const;
  /// A line that is to be answered, up to where the model's part begins: the member `field`, or
  /// where that is empty "messages", "conversations" or "prompt". DataError as of render().
  std::vector<TemplatePiece> render_prompt(const JsonCursor& line, const std::string& field) const;

 private:
  class Turns;
  struct Token {  // of a string of the template
    enum class Kind { text, special, member, eos };
    Kind kind = Kind::text;
    std::string text;  // also the name
  };
  using Text = std::vector<Token>;
  struct Role {
    Text before, begin, end, after;
    bool learned = false;
    bool joins = false;  // the turn behind it
  };
  struct Part {
    Text text;
    bool learned = false;
    std::optional<std::string> if_member, unless_member;
  };

  static ChatTemplate parse(std::string_view text, const std::string& name);
  Text compile(const JsonCursor& text, bool members) const;
  Text optional_text(const JsonCursor& object, std::string_view key) const;
  Role parse_role(const JsonCursor& role) const;
  Part parse_part(const JsonCursor& part) const;
  bool uses_eos() const;
  template <typename Visit>
  void for_each_text(const Visit& visit) const;

  /// `answer` as in add_parts().
  void add(const Text& text, bool learned, const JsonCursor& line,
           std::vector<TemplatePiece>& pieces, const std::string& answer = {}) const;
  /// Those that the line has.
  std::vector<const Part*> parts_of(const JsonCursor& line) const;
  /// `answer`: the member that stands for those of learned parts; empty: themselves.
  void add_parts(const JsonCursor& line, const std::string& answer,
                 std::vector<TemplatePiece>& pieces) const;
  std::vector<TemplatePiece> render_answer(const JsonCursor& line, const std::string& answer) const;
  /// A text that the user says, or messages.
  void add_prompt(const JsonCursor& prompt, Turns& turns) const;
  const Role& role_of(const JsonCursor& name) const;
  const Role& role_named(const std::string& name) const;
  const Role* find_role(const std::string& name) const;
  std::vector<std::string> learned_roles() const;

  std::string name_;
  std::vector<std::string> special_, optional_;
  Text begin_, end_;
  bool trim_ = false, trim_joined_ = false, alternates_ = false;
  std::map<std::string, Role> roles_;  // of conversations
  std::vector<Part> parts_;            // of other lines
  std::map<std::string, std::int32_t> ids_;
  std::optional<std::int32_t> eos_;
};

}  // namespace tessera::io
