// Learning byte-pair encoding from a text (Sennrich et al. 2016, on bytes as in GPT-2): of all
// words of the text the adjacent pair of tokens that is most frequent becomes a token of its own,
// again and again. What is kept of the text is each distinct word and how often it occurs.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera::io {

/// How often each word occurs. A corpus of some GB has millions of distinct words, which take about
/// 100 bytes each.
class WordCounts {
 public:
  /// Longer words (encoded data, drawn lines) teach nothing and are left out.
  static constexpr std::size_t kLongestWord = 1024;

  void add(std::string_view word, std::int64_t count = 1);
  std::int64_t distinct() const { return static_cast<std::int64_t>(counts_.size()); }
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (const auto& [word, count] : counts_) visit(std::string_view(word), count);
  }

  /// Takes words out, about `bytes` of them, for add_packed() elsewhere; empty when none are left.
  std::string take_packed(std::size_t bytes);
  void add_packed(std::string_view packed);

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  std::unordered_map<std::string, std::int64_t, Hash, std::equal_to<>> counts_;
};

/// The bytes of two tokens that become one.
struct LearnedMerge {
  std::string left, right;
  bool operator==(const LearnedMerge&) const = default;
};

/// The merges, in order, until there are `tokens` tokens, the 256 bytes included, or no pair occurs
/// twice. Of pairs that are as frequent the one of lower ids is first; `byte_ids` are those of the
/// bytes, 0 to 255, and each new token has the next. So the result depends on the counts alone, and
/// is that of the `tokenizers` package (BpeTrainer with min_frequency = 2). A pair whose bytes are
/// a token already becomes that token. `progress` is told the number of tokens.
std::vector<LearnedMerge> learn_merges(const WordCounts& words,
                                       const std::array<std::int32_t, 256>& byte_ids,
                                       std::int64_t tokens,
                                       const std::function<void(std::int64_t)>& progress = {});

}  // namespace tessera::io
