// The unigram language model (Kudo 2018): of all ways to cut a word into tokens, the likeliest,
// which Viterbi's algorithm finds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::io {

/// What a tokenizer file defines.
struct UnigramModel {
  std::vector<std::pair<std::string, double>> tokens;  // with their logarithms of probability
  std::optional<std::int32_t> unknown;
  bool byte_fallback = false;  // an unknown character is its bytes' tokens
};

class UnigramEncoder {
 public:
  explicit UnigramEncoder(UnigramModel model);

  /// Appends the ids of a word of valid UTF-8; neighbours that are unknown are one. DataError if
  /// something is unknown and there is no token for that.
  void encode(std::string_view word, std::vector<std::int32_t>& ids);

 private:
  struct Node {  // of the best way to a place in the word
    double score = 0;
    std::int32_t id = -1;
    std::int32_t begin = -1;  // of its last token; -1: no way is known yet
  };
  struct Part {  // of the best way
    std::size_t begin = 0, end = 0;
    std::int32_t id = 0;
    bool unknown = false;
  };
  void find_best(std::string_view word);
  void add_unknown(std::string_view text, std::vector<std::int32_t>& ids) const;
  std::int32_t next(std::int32_t node, unsigned char byte) const;
  void insert(std::string_view token, std::int32_t id);

  UnigramModel model_;
  double unknown_score_ = 0;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<std::int32_t> byte_ids_;  // of all 256 bytes, or empty
  // A trie of all tokens: an open-addressed table of (node, byte) -> node, and each node's token.
  std::vector<std::uint64_t> edges_;
  std::vector<std::int32_t> targets_;
  std::vector<std::int32_t> tokens_at_;
  std::vector<Node> nodes_;  // of the word
};

}  // namespace tessera::io
