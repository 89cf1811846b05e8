#include "data/prompts.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/bytes.hpp"
#include "core/error.hpp"
#include "core/hash.hpp"
#include "data/tokenizers.hpp"
#include "io/tokenize.hpp"
#include "io/tokenizer_files.hpp"
#include "io/tokenizer_json.hpp"

namespace tessera::data {

std::vector<std::int32_t> encode_prompt(std::string_view text, bool special_tokens,
                                        io::Tokenizer& tokenizer) {
  std::vector<std::int32_t> tokens = tokenizer.encode(text);
  const auto& before = tokenizer.frame().before;
  const bool spelled = std::ranges::mismatch(before, tokens).in1 == before.end();
  if (special_tokens && !spelled) tokens.insert(tokens.begin(), before.begin(), before.end());
  return tokens;
}

std::vector<std::int32_t> answer_ends(const io::Tokenizer& tokenizer,
                                      const io::ChatTemplate* chat) {
  std::vector<std::int32_t> ends;
  if (const auto end = tokenizer.end_of_text()) ends.push_back(*end);
  if (const auto text = chat != nullptr ? chat->learned_end() : std::nullopt)
    if (const auto end = tokenizer.id_of(*text)) ends.push_back(*end);
  return ends;
}

void read_prompts(
    std::span<const std::filesystem::path> files, const PromptRules& rules,
    io::Tokenizer& tokenizer,
    const std::function<void(const io::Document&, std::vector<std::int32_t>)>& prompt) {
  io::DocumentRules of_lines{
      .field = rules.field, .separator = {}, .chat = rules.chat, .prompts = true};
  if (rules.chat == nullptr && of_lines.field.empty()) of_lines.field = "prompt";
  std::vector<std::int32_t> tokens, marks;
  const auto read = [&](const io::Document& document) {
    if (rules.chat == nullptr) {
      tokens = encode_prompt(document.text, rules.special_tokens, tokenizer);
    } else {
      io::encode_pieces(document.pieces, tokenizer, tokens, marks);
    }
    const std::int64_t count = std::ssize(tokens);
    if (count == 0) {
      throw DataError(fmt::format("{}: the prompt has no tokens: give at least one character",
                                  io::place_text(document.place)));
    }
    if (count > rules.longest) {
      throw DataError(fmt::format("{}: the prompt has {}, more than {} of {}: shorten it",
                                  io::place_text(document.place), count_text(count, "token"),
                                  rules.limit, rules.longest));
    }
    prompt(document, tokens);
  };
  io::read_part(
      files, {}, of_lines, [](std::int64_t, std::int64_t) {}, read);
}

namespace {

io::ChatTemplate open_template(const deck::LoadedDeck& loaded, const std::filesystem::path& path,
                               const io::Tokenizer& tokenizer) {
  const std::string& name = *loaded.deck.rollout.chat;
  try {
    io::ChatTemplate chat = io::ChatTemplate::open(
        name == io::kRecognisedTemplate ? io::recognised_template(path, "rollout.chat =") : name);
    chat.bind(tokenizer);
    return chat;
  } catch (Error& e) {
    e.add_context(loaded.where("rollout.chat"));
    throw;
  }
}

std::vector<std::filesystem::path> prompt_files(const deck::LoadedDeck& loaded) {
  std::vector<std::filesystem::path> files;
  for (const deck::DataEntry& entry : loaded.deck.data.train) {
    if (!io::is_json_lines(entry.path)) {
      throw DataError(
          fmt::format("{}: data.train: {}: with task.kind = \"{}\" it is a file of prompts, .jsonl "
                      "or .jsonl.gz",
                      loaded.where("data.train"), entry.path, enum_word(loaded.deck.task.kind)));
    }
    files.emplace_back(entry.path);
  }
  return files;
}

/// Of a line that is an object without an answer of its own, which the model's would replace. What
/// answers are compared with, if they are: a text, or a whole number.
std::string right_answer(const deck::Deck& deck, const io::Document& document) {
  const auto line = nlohmann::json::parse(document.line, nullptr, false);
  const auto refuse = [&](const std::string& why) {
    throw DataError(fmt::format("{}: {}", io::place_text(document.place), why));
  };
  if (!line.is_object()) refuse("a prompt's line is an object of JSON");
  if (line.contains("completion")) {
    refuse(
        "the line has a member \"completion\", which the model's answer is called: give it "
        "another name");
  }
  if (deck.reward.kind != deck::RewardKind::match) return "";
  const auto found = line.find(deck.reward.field);
  if (found == line.end() || !(found->is_string() || found->is_number_integer())) {
    refuse(
        fmt::format("the line has no text or whole number \"{}\", which reward.kind = \"match\" "
                    "compares answers with (name the member as reward.field)",
                    deck.reward.field));
  }
  return found->is_string() ? found->get<std::string>() : found->dump();
}

/// That of reward.model or task.critic, which read the tokens of answers as they are.
KnownTokenizer tokenizer_of_judge(const deck::LoadedDeck& loaded, const char* key,
                                  const std::string& model) {
  const auto path = tokenizer_of_directory(model);
  if (!path) {
    throw DataError(fmt::format(
        "{}: {}: {} has no tokenizer.json, by which it is known that it reads the tokens that "
        "model.init_from writes: put it there",
        loaded.where(key), key, model));
  }
  return {.key = key, .path = *path};
}

std::uint64_t hash_of(const Prompts& prompts) {
  Hasher hash;
  const auto add = [&](std::span<const std::int32_t> tokens) {
    hash.add(std::ssize(tokens));
    for (const std::int32_t id : tokens) hash.add(id);
  };
  add(prompts.ends);
  for (const Prompts::Prompt& prompt : prompts.all) {
    hash.add(std::string_view(prompt.line)).add(std::string_view(prompt.answer));
    add(prompt.tokens);
  }
  return hash.value();
}

}  // namespace

Prompts open_prompts(const deck::LoadedDeck& loaded) {
  const deck::Deck& deck = loaded.deck;
  const auto files = prompt_files(loaded);
  auto known = tokenizers_of_model(deck);
  if (deck.reward.kind == deck::RewardKind::model)
    known.push_back(tokenizer_of_judge(loaded, "reward.model", *deck.reward.model));
  if (deck.task.critic)
    known.push_back(tokenizer_of_judge(loaded, "task.critic", *deck.task.critic));
  const auto path = common_tokenizer(loaded, known);
  if (!path) {
    throw DataError(fmt::format(
        "{}: model.init_from: {} has no tokenizer.json, which task.kind = \"{}\" reads prompts and "
        "writes answers with: put it there",
        loaded.where("model.init_from"), *deck.model.init_from, enum_word(deck.task.kind)));
  }
  Prompts prompts{.all = {}, .tokenizer = io::open_kept_tokenizer(*path), .ends = {}};
  io::Tokenizer& tokenizer = prompts.tokenizer;
  std::optional<io::ChatTemplate> chat;
  if (deck.rollout.chat) chat = open_template(loaded, *path, tokenizer);
  prompts.ends = answer_ends(tokenizer, chat ? &*chat : nullptr);
  const PromptRules rules{.field = chat ? "" : deck.rollout.field,
                          .chat = chat ? &*chat : nullptr,
                          .longest = deck.batch.sequence - 1,
                          .limit = "batch.sequence leaves room for before an answer,"};
  const auto add = [&](const io::Document& document, std::vector<std::int32_t> tokens) {
    const auto beyond =
        std::ranges::find_if(tokens, [&](std::int32_t id) { return id >= deck.model.vocab; });
    if (beyond != tokens.end()) {
      throw DataError(fmt::format("{}: token {} is not below model.vocab = {}",
                                  io::place_text(document.place), *beyond, deck.model.vocab));
    }
    prompts.all.push_back({.line = std::string(document.line),
                           .tokens = std::move(tokens),
                           .answer = right_answer(deck, document)});
  };
  try {
    read_prompts(files, rules, tokenizer, add);
  } catch (Error& e) {
    e.add_context(fmt::format("{}: data.train", loaded.where("data.train")));
    throw;
  }
  if (prompts.all.empty()) {
    throw DataError(fmt::format("{}: data.train has no prompts: its files have blank lines alone",
                                loaded.where("data.train")));
  }
  return prompts;
}

Prompts open_prompts(const deck::LoadedDeck& loaded, const comm::Control& control) {
  std::optional<Prompts> prompts;
  control.together([&] { prompts.emplace(open_prompts(loaded)); });
  control.must_agree(hash_of(*prompts), "data.train: ranks see different prompts");
  return std::move(*prompts);
}

}  // namespace tessera::data
