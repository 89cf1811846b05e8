#include "io/bpe.hpp"

#include <functional>
#include <queue>

#include "core/error.hpp"

namespace tessera::io {
namespace {

constexpr std::size_t kCachedWords = std::size_t{1} << 17;
constexpr std::size_t kLongestCached = 64;

}  // namespace

void BpeEncoder::encode(std::string_view word, std::vector<std::int32_t>& ids) {
  if (model_.merges.empty() && model_.whole_words.empty()) {  // every byte is a token
    for (const char c : word) ids.push_back(model_.byte_ids[static_cast<unsigned char>(c)]);
    return;
  }
  if (word.size() > kLongestCached) return merge(word, ids);
  std::string key(word);
  auto found = cache_.find(key);
  if (found == cache_.end()) {
    if (cache_.size() == kCachedWords) cache_.clear();
    std::vector<std::int32_t> encoded;
    merge(word, encoded);
    found = cache_.emplace(std::move(key), std::move(encoded)).first;
  }
  ids.insert(ids.end(), found->second.begin(), found->second.end());
}

void BpeEncoder::merge(std::string_view word, std::vector<std::int32_t>& ids) {
  if (!model_.whole_words.empty()) {
    if (const auto whole = model_.whole_words.find(std::string(word));
        whole != model_.whole_words.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  // Symbols are indexed by 32-bit numbers; a longer word is no text.
  if (word.size() > INT32_MAX) {
    throw DataError(fmt::format("a word of {} bytes, at most {} can be encoded: is it text?",
                                word.size(), INT32_MAX));
  }
  const auto count = static_cast<std::int32_t>(word.size());
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (std::int32_t i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(word[static_cast<std::size_t>(i)]);
    symbols.push_back({model_.byte_ids[byte], i - 1, i + 1 < count ? i + 1 : -1});
  }
  const auto symbol = [&](std::int32_t i) -> Symbol& {
    return symbols[static_cast<std::size_t>(i)];
  };

  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto consider = [&](std::int32_t left) {
    if (left < 0 || symbol(left).next < 0) return;
    const std::int32_t left_id = symbol(left).id, right_id = symbol(symbol(left).next).id;
    const auto merge = model_.merges.find(BpeModel::pair_key(left_id, right_id));
    if (merge != model_.merges.end()) {
      queue.push({merge->second.rank, left, left_id, right_id});
    }
  };
  for (std::int32_t i = 0; i < count; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbol(best.left);
    if (left.id != best.left_id || left.next < 0) continue;  // merged away since it was queued
    Symbol& right = symbol(left.next);
    if (right.id != best.right_id) continue;
    left.id = model_.merges.at(BpeModel::pair_key(best.left_id, best.right_id)).result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbol(left.next).previous = best.left;
    consider(left.previous);
    consider(best.left);
  }
  for (std::int32_t i = count > 0 ? 0 : -1; i >= 0; i = symbol(i).next) ids.push_back(symbol(i).id);
}

}  // namespace tessera::io
