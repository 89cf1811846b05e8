// Byte-pair encoding of one word (Sennrich et al. 2016, on bytes as in GPT-2): starting from single
// bytes, the adjacent pair of lowest rank is merged, leftmost first, until no pair has a rank.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera::io {

/// What a tokenizer file defines; ids are >= 0.
struct BpeModel {
  struct Merge {
    std::int32_t rank = 0;
    std::int32_t result = 0;
    bool operator==(const Merge&) const = default;
  };
  std::array<std::int32_t, 256> byte_ids{};
  std::unordered_map<std::uint64_t, Merge> merges;  // by pair_key
  /// If set, a word that is a token is that token, whatever the merges say.
  std::unordered_map<std::string, std::int32_t> whole_words;

  static std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }
};

/// Encodes words: O(n log n) in a word's length, and words seen before come from a bounded cache.
class BpeEncoder {
 public:
  explicit BpeEncoder(BpeModel model) : model_(std::move(model)) {}

  void encode(std::string_view word, std::vector<std::int32_t>& ids);

 private:
  struct Symbol {
    std::int32_t id;
    std::int32_t previous;  // index, -1 at the start
    std::int32_t next;      // index, -1 at the end
  };
  struct Candidate {  // the pair of symbols `left` and its next, while their ids are these
    std::int32_t rank;
    std::int32_t left;
    std::int32_t left_id;
    std::int32_t right_id;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };

  void merge(std::string_view word, std::vector<std::int32_t>& ids);

  BpeModel model_;
  std::unordered_map<std::string, std::vector<std::int32_t>> cache_;
};

}  // namespace tessera::io
