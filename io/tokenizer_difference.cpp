// Whether two tokenizers give the same ids, and for people what differs.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "core/error.hpp"
#include "io/tokenizer_json.hpp"

namespace tessera::io {
namespace {

using Vocabulary = std::unordered_map<std::int32_t, std::string>;

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string token_in(const Vocabulary& vocabulary, std::int32_t id) {
  const auto found = vocabulary.find(id);
  return found == vocabulary.end() ? "no token" : quoted(found->second);
}

/// The lowest id that is not the same text in both.
std::optional<std::int32_t> first_other_token(const Vocabulary& one, const Vocabulary& other) {
  std::optional<std::int32_t> lowest;
  const auto look = [&](const Vocabulary& mine, const Vocabulary& theirs) {
    for (const auto& [id, text] : mine) {
      const auto found = theirs.find(id);
      const bool same = found != theirs.end() && found->second == text;
      if (!same && (!lowest || id < *lowest)) lowest = id;
    }
  };
  look(one, other);
  look(other, one);
  return lowest;
}

/// By id, whether each is special.
std::map<std::int32_t, bool> added_tokens(const TokenizerDefinition& definition) {
  std::map<std::int32_t, bool> all;
  for (const AddedToken& token : definition.added) all[token.id] = token.special;
  return all;
}

bool same_words(const TokenizerDefinition& one, const TokenizerDefinition& other) {
  return one.normalizer.description() == other.normalizer.description() &&
         one.pre_tokenizer.description() == other.pre_tokenizer.description();
}

/// How two models of one kind cut words differently; empty if they never do.
std::string model_difference(const BpeModel& one, const BpeModel& other) {
  const auto same_characters = [](const CharacterTokens& a, const CharacterTokens& b) {
    return a.byte_ids == b.byte_ids && a.unknown == b.unknown && a.fuse_unknown == b.fuse_unknown;
  };
  if (one.merges == other.merges && one.whole_words.empty() == other.whole_words.empty() &&
      one.characters.has_value() == other.characters.has_value() &&
      (!one.characters || same_characters(*one.characters, *other.characters)))
    return "";
  return fmt::format("they merge bytes differently ({} and {} merges)", one.merges.size(),
                     other.merges.size());
}

std::string model_difference(const WordPieceModel& one, const WordPieceModel& other) {
  const auto settings = [](const WordPieceModel& m) {
    return std::tuple(m.unknown, m.continuing, m.longest_word);
  };
  return settings(one) == settings(other) ? "" : "they cut words into pieces differently";
}

std::string model_difference(const UnigramModel& one, const UnigramModel& other) {
  const auto settings = [](const UnigramModel& m) {
    return std::tie(m.tokens, m.unknown, m.byte_fallback);
  };
  return settings(one) == settings(other) ? "" : "their tokens have other probabilities";
}

template <typename One, typename Other>
std::string model_difference(const One&, const Other&) {
  return "they are of different kinds";
}

}  // namespace

std::string difference_of(const TokenizerDefinition& one, const TokenizerDefinition& other) {
  if (const auto id = first_other_token(one.names, other.names)) {
    return fmt::format("id {} is {} in the first and {} in the second", *id,
                       token_in(one.names, *id), token_in(other.names, *id));
  }
  if (added_tokens(one) != added_tokens(other)) {
    return fmt::format("their special and added tokens differ ({} and {})", one.added.size(),
                       other.added.size());
  }
  const std::string models = std::visit(
      [](const auto& a, const auto& b) { return model_difference(a, b); }, one.model, other.model);
  if (!models.empty()) return models;
  if (!same_words(one, other)) return "they cut text into words differently";
  return "";
}

}  // namespace tessera::io
