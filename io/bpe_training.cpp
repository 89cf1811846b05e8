#include "io/bpe_training.hpp"

#include <algorithm>
#include <cstring>
#include <queue>
#include <span>
#include <unordered_set>
#include <utility>

#include "core/error.hpp"
#include "io/bpe.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t kLeastFrequent = 2;  // a pair that occurs once says nothing of others

/// All words as rows of tokens, and where each pair of neighbours occurs.
class MergeLearner {
 public:
  MergeLearner(const WordCounts& words, const std::array<std::int32_t, 256>& byte_ids)
      : bytes_of_(256) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      bytes_of_[index(byte_ids[byte])] = std::string(1, static_cast<char>(byte));
    }
    for (std::size_t id = 0; id < 256; ++id) ids_[bytes_of_[id]] = static_cast<std::int32_t>(id);
    TESSERA_CHECK(words.distinct() < INT32_MAX, "{} distinct words", words.distinct());
    words.for_each([&](std::string_view word, std::int64_t count) {
      words_.push_back({symbols_.size(), word.size(), count});
      for (const char c : word) symbols_.push_back(byte_ids[static_cast<unsigned char>(c)]);
    });
    for (std::size_t w = 0; w < words_.size(); ++w) count_pairs(w);
    for (const auto& [key, pair] : pairs_) queue_.push({pair.count, key});
  }

  std::int64_t tokens() const { return static_cast<std::int64_t>(bytes_of_.size()); }

  /// Makes the most frequent pair a token. False if no pair is frequent enough; `learned` is
  /// appended to, unless the same merge was there before.
  bool merge_most_frequent(std::vector<LearnedMerge>& learned) {
    while (!queue_.empty()) {
      const Entry most = queue_.top();
      queue_.pop();
      const auto found = pairs_.find(most.key);
      if (found == pairs_.end()) continue;
      if (found->second.count != most.count) {  // it has become rarer since, or more frequent
        if (found->second.count > 0) queue_.push({found->second.count, most.key});
        continue;
      }
      if (most.count < kLeastFrequent) return false;
      const std::vector<std::int32_t> where = std::move(found->second.words);
      pairs_.erase(found);
      merge(most.key, where, learned);
      return true;
    }
    return false;
  }

 private:
  struct Word {
    std::size_t begin, length;  // of its tokens in symbols_
    std::int64_t count;
  };
  struct Pair {
    std::int64_t count = 0;
    std::vector<std::int32_t> words;  // those that have it, and some that had it
  };
  struct Entry {
    std::int64_t count;
    std::uint64_t key;
    bool operator<(const Entry& other) const {
      return count != other.count ? count < other.count : key > other.key;
    }
  };

  static std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }

  std::span<std::int32_t> tokens_of(const Word& word) {
    return std::span(symbols_).subspan(word.begin, word.length);
  }

  void add(std::int32_t left, std::int32_t right, std::size_t word) {
    Pair& pair = pairs_[BpeModel::pair_key(left, right)];
    pair.count += words_[word].count;
    const auto number = static_cast<std::int32_t>(word);
    if (pair.words.empty() || pair.words.back() != number) pair.words.push_back(number);
  }

  void count_pairs(std::size_t word) {
    const auto tokens = tokens_of(words_[word]);
    for (std::size_t i = 1; i < tokens.size(); ++i) add(tokens[i - 1], tokens[i], word);
  }

  void merge(std::uint64_t key, const std::vector<std::int32_t>& where,
             std::vector<LearnedMerge>& learned) {
    const auto left = static_cast<std::int32_t>(key >> 32);
    const auto right = static_cast<std::int32_t>(key & 0xffffffffU);
    const std::string bytes = bytes_of_[index(left)] + bytes_of_[index(right)];
    const auto [made, is_new] = ids_.emplace(bytes, static_cast<std::int32_t>(bytes_of_.size()));
    if (merged_.insert(key).second) {
      learned.push_back({bytes_of_[index(left)], bytes_of_[index(right)]});
    }
    if (is_new) bytes_of_.push_back(bytes);
    touched_.clear();
    for (const std::int32_t word : where) {
      merge_in_word(index(word), left, right, made->second);
    }
    std::sort(touched_.begin(), touched_.end());
    touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
    for (const std::uint64_t changed : touched_) {
      if (const auto pair = pairs_.find(changed); pair != pairs_.end())
        queue_.push({pair->second.count, changed});
    }
  }

  /// Replaces the pair in a word, leftmost first, and counts what its neighbours are now.
  void merge_in_word(std::size_t word, std::int32_t left, std::int32_t right, std::int32_t made) {
    const auto tokens = tokens_of(words_[word]);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < tokens.size(); ++kept) {
      const bool here = i + 1 < tokens.size() && tokens[i] == left && tokens[i + 1] == right;
      if (!here) {
        tokens[kept] = tokens[i++];
        continue;
      }
      if (kept > 0) replace(word, {tokens[kept - 1], left}, {tokens[kept - 1], made});
      if (i + 2 < tokens.size()) replace(word, {right, tokens[i + 2]}, {made, tokens[i + 2]});
      tokens[kept] = made;
      i += 2;
    }
    words_[word].length = kept;
  }

  void replace(std::size_t word, std::pair<std::int32_t, std::int32_t> gone,
               std::pair<std::int32_t, std::int32_t> come) {
    const auto before = pairs_.find(BpeModel::pair_key(gone.first, gone.second));
    if (before != pairs_.end()) before->second.count -= words_[word].count;
    add(come.first, come.second, word);
    touched_.push_back(BpeModel::pair_key(come.first, come.second));
  }

  std::vector<std::string> bytes_of_;  // of each token
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<std::int32_t> symbols_;
  std::vector<Word> words_;
  std::unordered_map<std::uint64_t, Pair> pairs_;  // by BpeModel::pair_key
  std::unordered_set<std::uint64_t> merged_;
  std::priority_queue<Entry> queue_;    // also of counts that are not true any more
  std::vector<std::uint64_t> touched_;  // pairs that a merge has made more frequent
};

}  // namespace

void WordCounts::add(std::string_view word, std::int64_t count) {
  if (word.empty() || word.size() > kLongestWord) return;
  const auto found = counts_.find(word);
  if (found != counts_.end()) {
    found->second += count;
  } else {
    counts_.emplace(word, count);
  }
}

std::string WordCounts::take_packed(std::size_t bytes) {
  std::string packed;
  while (!counts_.empty() && packed.size() < bytes) {
    const auto first = counts_.begin();
    const auto length = static_cast<std::uint32_t>(first->first.size());
    packed.append(reinterpret_cast<const char*>(&length), sizeof(length));
    packed.append(reinterpret_cast<const char*>(&first->second), sizeof(first->second));
    packed += first->first;
    counts_.erase(first);
  }
  return packed;
}

void WordCounts::add_packed(std::string_view packed) {
  while (!packed.empty()) {
    std::uint32_t length = 0;
    std::int64_t count = 0;
    std::memcpy(&length, packed.data(), sizeof(length));
    std::memcpy(&count, packed.data() + sizeof(length), sizeof(count));
    packed.remove_prefix(sizeof(length) + sizeof(count));
    add(packed.substr(0, length), count);
    packed.remove_prefix(length);
  }
}

std::vector<LearnedMerge> learn_merges(const WordCounts& words,
                                       const std::array<std::int32_t, 256>& byte_ids,
                                       std::int64_t tokens,
                                       const std::function<void(std::int64_t)>& progress) {
  MergeLearner learner(words, byte_ids);
  std::vector<LearnedMerge> learned;
  while (learner.tokens() < tokens && learner.merge_most_frequent(learned)) {
    if (progress) progress(learner.tokens());
  }
  return learned;
}

}  // namespace tessera::io
