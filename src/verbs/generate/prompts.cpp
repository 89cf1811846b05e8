#include "verbs/generate/prompts.hpp"

#include <array>
#include <nlohmann/json.hpp>

#include "data/prompts.hpp"

namespace tessera::verbs {
namespace {

/// The member that a conversation is read from, as io::ChatTemplate finds it.
std::string told_by(const nlohmann::ordered_json& line, const std::string& field) {
  for (const std::string_view name : io::kPromptMembers)
    if (field.empty() && line.contains(name)) return std::string(name);
  return field;
}

/// What a line says of its prompt.
nlohmann::ordered_json told_of(const io::Document& document, const std::string& field, bool chat) {
  nlohmann::ordered_json told;
  if (!chat) {
    told[field.empty() ? "prompt" : field] = document.text;
    return told;
  }
  const auto line = nlohmann::ordered_json::parse(document.line);
  const std::string member = told_by(line, field);
  if (line.contains(member)) {
    told[member] = line[member];
  } else {
    told["prompt"] = line;  // of a template that names what it reads
  }
  return told;
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
  const data::PromptRules rules{.field = o.field,
                                .chat = speaker.chat ? &*speaker.chat : nullptr,
                                .special_tokens = o.special_tokens,
                                .longest = context,
                                .limit = "the model's context"};
  std::vector<Prompt> prompts;
  data::read_prompts(
      std::array{o.prompts}, rules, speaker.tokenizer,
      [&](const io::Document& document, std::vector<std::int32_t> tokens) {
        const auto told = told_of(document, o.field, speaker.chat.has_value());
        prompts.push_back(
            {.told = told.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
             .tokens = std::move(tokens)});
      });
  return prompts;
}

}  // namespace tessera::verbs
