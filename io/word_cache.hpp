// The tokens of words that a tokenizer has met before: text repeats its words.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::io {

/// A table of bounded size, which begins anew when it is full.
class WordCache {
 public:
  WordCache();

  /// Appends the ids of a word: known ones, or those that `encode(word, ids)` appends, which are
  /// kept. Long words are not.
  template <typename Encode>
  void append(std::string_view word, std::vector<std::int32_t>& ids, const Encode& encode) {
    if (word.size() > kLongest) return encode(word, ids);
    const std::uint64_t hash = hash_of(word);
    if (const Entry* known = find(word, hash)) {
      ids.insert(ids.end(), ids_.begin() + known->first,
                 ids_.begin() + known->first + known->count);
      return;
    }
    const std::size_t before = ids.size();
    encode(word, ids);
    keep(word, hash, std::span(ids).subspan(before));
  }

 private:
  static constexpr std::size_t kLongest = 64;

  struct Entry {
    std::uint64_t hash = 0;
    std::uint32_t text = 0, first = 0;  // where its bytes and ids are
    std::uint16_t length = 0, count = 0;
    bool used = false;
  };

  static std::uint64_t hash_of(std::string_view word);
  const Entry* find(std::string_view word, std::uint64_t hash) const;
  void keep(std::string_view word, std::uint64_t hash, std::span<const std::int32_t> ids);
  void forget_all();

  std::vector<Entry> table_;  // open addressing, by hash
  std::size_t words_ = 0;
  std::string text_;
  std::vector<std::int32_t> ids_;
};

}  // namespace tessera::io
