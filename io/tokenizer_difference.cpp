// Whether two tokenizers give the same ids, and for people what differs.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

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
  return one.prefix_space == other.prefix_space &&
         std::equal(
             one.patterns.begin(), one.patterns.end(), other.patterns.begin(), other.patterns.end(),
             [](const SplitPattern& a, const SplitPattern& b) { return a.text() == b.text(); });
}

}  // namespace

std::string difference_of(const TokenizerDefinition& one, const TokenizerDefinition& other) {
  if (const auto id = first_other_token(one.bytes_of, other.bytes_of)) {
    return fmt::format("id {} is {} in the first and {} in the second", *id,
                       token_in(one.bytes_of, *id), token_in(other.bytes_of, *id));
  }
  if (added_tokens(one) != added_tokens(other)) {
    return fmt::format("their special and added tokens differ ({} and {})", one.added.size(),
                       other.added.size());
  }
  if (one.model.merges != other.model.merges ||
      one.model.whole_words.empty() != other.model.whole_words.empty()) {
    return fmt::format("they merge bytes differently ({} and {} merges)", one.model.merges.size(),
                       other.model.merges.size());
  }
  if (!same_words(one, other)) return "they cut text into words differently";
  return "";
}

}  // namespace tessera::io
