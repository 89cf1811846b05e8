// Byte-pair encoding of one word (Sennrich et al. 2016): starting from single bytes, as in GPT-2,
// or from characters, as in SentencePiece, the adjacent pair of lowest rank is merged, leftmost
// first, until no pair has a rank.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace tessera::io {

/// SentencePiece's, U+2581.
inline constexpr std::string_view kVisibleSpace = "\xE2\x96\x81";

/// Of tokens that are made of characters.
struct CharacterTokens {
  std::unordered_map<std::string, std::int32_t> ids;  // of those that are one character
  /// What bytes of other characters are; -1 where there is no such token. Where one byte of a
  /// character has none, the character is unknown.
  std::array<std::int32_t, 256> byte_ids{};
  std::optional<std::int32_t> unknown;  // without it, unknown characters are left out
  bool fuse_unknown = false;            // neighbours are one
  /// The characters that precede a visible space, U+2581, in some token; without one, where such a
  /// space is no token itself. Behind any other character nothing is ever merged with a space, so
  /// that text can be cut there.
  std::optional<std::unordered_set<std::string>> before_space;
};

/// What a tokenizer file defines; ids are >= 0.
struct BpeModel {
  struct Merge {
    std::int32_t rank = 0;
    std::int32_t result = 0;
    bool operator==(const Merge&) const = default;
  };
  std::array<std::int32_t, 256> byte_ids{};
  std::optional<CharacterTokens> characters;        // in place of byte_ids
  std::unordered_map<std::uint64_t, Merge> merges;  // by pair_key
  /// If set, a word that is a token is that token, whatever the merges say.
  std::unordered_map<std::string, std::int32_t> whole_words;

  static std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }
};

/// Encodes words, in O(n log n) of a word's length.
class BpeEncoder {
 public:
  explicit BpeEncoder(BpeModel model);

  /// Calls `part` for the parts of a word that can be encoded alone.
  template <typename Part>
  void for_each_part(std::string_view word, const Part& part) const {
    std::size_t begin = 0;
    for (std::size_t end; (end = next_cut(word, begin)) < word.size(); begin = end)
      part(word.substr(begin, end - begin));
    part(word.substr(begin));
  }

  /// Appends the ids of a word: any bytes, or with CharacterTokens valid UTF-8.
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
  struct Slot {  // of the table of merges
    std::uint64_t key = 0;
    BpeModel::Merge merge;
    bool used = false;
  };

  std::size_t next_cut(std::string_view word, std::size_t begin) const;
  const BpeModel::Merge* find(std::int32_t left, std::int32_t right) const;
  void start_bytes(std::string_view word);
  void start_characters(std::string_view word);
  void merge_few(std::vector<std::int32_t>& ids);
  void merge_many(std::vector<std::int32_t>& ids) const;

  BpeModel model_;
  std::vector<Slot> table_;            // of merges, open-addressed
  std::vector<std::int32_t> start_;    // the word before anything is merged
  std::vector<BpeModel::Merge> pair_;  // of few symbols: the merge of each with its next
};

}  // namespace tessera::io
