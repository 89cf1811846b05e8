#include "verbs/generate/prompts.hpp"

#include <array>
#include <nlohmann/json.hpp>

#include "core/bytes.hpp"
#include "io/document_reader.hpp"
#include "io/tokenize.hpp"

namespace tessera::verbs {
namespace {

/// The member that a conversation is read from, as io::ChatTemplate finds it.
std::string told_by(const nlohmann::ordered_json& line, const std::string& field) {
  for (const std::string_view name : io::kPromptMembers)
    if (field.empty() && line.contains(name)) return std::string(name);
  return field;
}

}  // namespace

std::vector<Prompt> read_prompts(const GenerateOptions& o, Speaker& speaker, std::int64_t context) {
  for (const char* own :
       {"index", "sample", "completion", "finish", "tokens", "token_ids", "log_probabilities"}) {
    if (o.field != own) continue;
    throw DeckError(
        fmt::format("--field {}: lines of completions have a member of that name "
                    "themselves: give the prompts another",
                    own));
  }
  io::DocumentRules rules{.field = o.field, .separator = {}, .prompts = true};
  if (speaker.chat) {
    rules.chat = &*speaker.chat;
  } else if (rules.field.empty()) {
    rules.field = "prompt";
  }
  std::vector<Prompt> prompts;
  std::vector<std::int32_t> marks;
  io::read_part(
      std::array{o.prompts}, {}, rules, [](std::int64_t, std::int64_t) {},
      [&](const io::Document& document) {
        Prompt& prompt = prompts.emplace_back();
        nlohmann::ordered_json told;
        if (!speaker.chat) {
          prompt.tokens = encode_prompt(document.text, o, speaker.tokenizer);
          told[rules.field] = document.text;
        } else {
          io::encode_pieces(document.pieces, speaker.tokenizer, prompt.tokens, marks);
          const auto line = nlohmann::ordered_json::parse(document.line);
          const std::string member = told_by(line, o.field);
          if (line.contains(member)) {
            told[member] = line[member];
          } else {
            told["prompt"] = line;  // of a template that names what it reads
          }
        }
        prompt.told = told.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
        const std::int64_t count = std::ssize(prompt.tokens);
        if (count == 0) {
          throw DataError(fmt::format("{}: the prompt has no tokens: give at least one character",
                                      io::place_text(document.place)));
        }
        if (count > context) {
          throw DataError(
              fmt::format("{}: the prompt has {}, more than the model's context of {}: shorten it",
                          io::place_text(document.place), count_text(count, "token"), context));
        }
      });
  return prompts;
}

}  // namespace tessera::verbs
