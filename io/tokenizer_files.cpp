#include "io/tokenizer_files.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.hpp"
#include "io/file.hpp"
#include "io/json.hpp"
#include "io/utf8.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kLargestTokenizerConfig = std::int64_t{64} << 20;
constexpr std::size_t kShownTokens = 20;
constexpr std::string_view kEnding = ".json";
constexpr auto kMasks = std::to_array<std::string_view>({"[MASK]", "<mask>"});

/// What the file beside a tokenizer.json says.
std::optional<JsonDocument> config_beside(const fs::path& tokenizer_json) {
  const fs::path path = tokenizer_config_of(tokenizer_json);
  if (!path_exists(path)) return std::nullopt;
  JsonDocument config(read_text(path, kLargestTokenizerConfig), path.string());
  if (!config.root().is_object()) config.root().expected("an object");
  return config;
}

/// The id of a token that the file beside states, as a name or an object with one.
std::int32_t id_of(const JsonCursor& stated, const Tokenizer& tokenizer,
                   const fs::path& tokenizer_json) {
  const JsonCursor name = stated.is_object() ? stated["content"] : stated;
  const auto id = tokenizer.id_of(name.text());
  if (!id) {
    name.fail(fmt::format("{} is no token of {}", name.shown(), tokenizer_json.string()));
  }
  return *id;
}

/// Sets the end that the file beside states; whether there is one that does.
bool take_stated_end(Tokenizer& tokenizer, const fs::path& tokenizer_json) {
  const auto config = config_beside(tokenizer_json);
  if (!config || !config->root().raw().contains("eos_token")) return false;
  const auto stated = config->root().find("eos_token");
  tokenizer.set_end_of_text(stated ? std::optional(id_of(*stated, tokenizer, tokenizer_json))
                                   : std::nullopt);
  return true;
}

/// Nothing for a tokenizer of a kind that is not read here.
std::optional<Tokenizer> open_if_known(const fs::path& tokenizer_json) {
  if (!path_exists(tokenizer_json)) return std::nullopt;
  try {
    return Tokenizer::open(tokenizer_json);
  } catch (const UnsupportedError&) {
    return std::nullopt;
  }
}

std::string escaped(std::string_view text) {
  const std::string quoted =
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

std::string shown_tokens(const Tokenizer& tokenizer) {
  const auto names = tokenizer.special_tokens();
  if (names.empty()) return "it has no special tokens";
  std::string text = "its special tokens are";
  for (std::size_t i = 0; i < std::min(names.size(), kShownTokens); ++i) {
    text += (i == 0 ? " " : ", ") + escaped(names[i]);
  }
  if (names.size() > kShownTokens) text += fmt::format(" and {} more", names.size() - kShownTokens);
  return text;
}

}  // namespace

fs::path tokenizer_beside(const fs::path& prefix) { return prefix.string() + ".tokenizer.json"; }

fs::path tokenizer_config_of(const fs::path& tokenizer_json) {
  std::string name = tokenizer_json.string();
  if (name.ends_with(kEnding)) name.resize(name.size() - kEnding.size());
  return name + "_config.json";
}

std::optional<std::string> chat_template_of(const fs::path& tokenizer_json) {
  const auto config = config_beside(tokenizer_json);
  const auto jinja = config ? config->root().find("chat_template") : std::nullopt;
  if (!jinja || !jinja->is_text()) return std::nullopt;  // or several, by name
  return jinja->text();
}

Tokenizer open_kept_tokenizer(const fs::path& tokenizer_json) {
  Tokenizer tokenizer = Tokenizer::open(tokenizer_json);
  take_stated_end(tokenizer, tokenizer_json);
  return tokenizer;
}

std::optional<std::int32_t> mask_token_of(const fs::path& tokenizer_json) {
  const auto tokenizer = open_if_known(tokenizer_json);
  if (!tokenizer) return std::nullopt;
  if (const auto config = config_beside(tokenizer_json)) {
    if (const auto stated = config->root().find("mask_token"))
      return id_of(*stated, *tokenizer, tokenizer_json);
  }
  for (const std::string_view name : kMasks) {
    if (const auto id = tokenizer->id_of(name)) return id;
  }
  return std::nullopt;
}

void keep_tokenizer(const fs::path& tokenizer_json, const Tokenizer& tokenizer) {
  const auto end = tokenizer.end_of_text();
  nlohmann::json name;
  if (end) name = tokenizer.name_of(*end);
  write_text(tokenizer_config_of(tokenizer_json),
             nlohmann::json{{"eos_token", name}}.dump(2) + "\n");
  write_text(tokenizer_json, tokenizer.json());
}

void copy_tokenizer(const fs::path& from, const fs::path& to) {
  if (const fs::path config = tokenizer_config_of(from); path_exists(config))
    write_text(tokenizer_config_of(to), read_text(config, kLargestTokenizerConfig));
  write_text(to, read_text(from, kLargestTokenizerFile));
}

void forget_tokenizer(const fs::path& tokenizer_json) {
  remove_durably(tokenizer_json);
  remove_durably(tokenizer_config_of(tokenizer_json));
}

Tokenizer with_end(Tokenizer tokenizer, const std::string& name, const std::string& eos) {
  if (eos == "none") {
    tokenizer.set_end_of_text(std::nullopt);
  } else if (!eos.empty()) {
    const auto id = tokenizer.id_of(eos);
    if (!id || valid_utf8_prefix(eos) < eos.size()) {  // JSON, which keeps it, is UTF-8
      throw DeckError(fmt::format("--eos {}: no token of {} is called so; {}", escaped(eos), name,
                                  shown_tokens(tokenizer)));
    }
    tokenizer.set_end_of_text(id);
  }
  return tokenizer;
}

Tokenizer open_for_documents(const std::string& name, const std::string& eos) {
  const bool bytes = name == "bytes";
  Tokenizer tokenizer = with_end(bytes ? Tokenizer::bytes() : Tokenizer::open(name), name, eos);
  if (eos.empty() && !bytes && !tokenizer.end_of_text() && !take_stated_end(tokenizer, name)) {
    throw DeckError(
        fmt::format("{} does not say which token ends a document ({}): choose one with --eos "
                    "TOKEN, or --eos none to have the ends in .idx only",
                    name, shown_tokens(tokenizer)));
  }
  return tokenizer;
}

std::string document_end(const Tokenizer& tokenizer) {
  const auto end = tokenizer.end_of_text();
  if (!end) return "ended in .idx only, by no token";
  return fmt::format("each ended by id {} {}", *end, escaped(tokenizer.name_of(*end)));
}

}  // namespace tessera::io
