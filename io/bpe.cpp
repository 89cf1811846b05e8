#include "io/bpe.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>

#include "core/error.hpp"
#include "io/unicode.hpp"

namespace tessera::io {
namespace {

constexpr std::size_t kFewSymbols = 64;

std::size_t slot_of_pair(std::uint64_t key, std::size_t slots) {
  return (key * 0x9E3779B97F4A7C15U >> 24) & (slots - 1);
}

}  // namespace

BpeEncoder::BpeEncoder(BpeModel model) : model_(std::move(model)) {
  table_.resize(std::bit_ceil(2 * model_.merges.size() + 2));
  for (const auto& [key, merge] : model_.merges) {
    std::size_t slot = slot_of_pair(key, table_.size());
    while (table_[slot].used) slot = (slot + 1) & (table_.size() - 1);
    table_[slot] = {key, merge, true};
  }
  model_.merges.clear();
}

const BpeModel::Merge* BpeEncoder::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = BpeModel::pair_key(left, right);
  for (std::size_t slot = slot_of_pair(key, table_.size()); table_[slot].used;
       slot = (slot + 1) & (table_.size() - 1)) {
    if (table_[slot].key == key) return &table_[slot].merge;
  }
  return nullptr;
}

/// Where the part ends that begins at `begin`: at a visible space behind a character that no token
/// has before one, or at the end.
std::size_t BpeEncoder::next_cut(std::string_view word, std::size_t begin) const {
  if (!model_.characters || !model_.characters->before_space || !model_.whole_words.empty())
    return word.size();
  const auto& joined = *model_.characters->before_space;
  for (std::size_t at = begin + 1; (at = word.find(kVisibleSpace, at)) < word.size(); ++at) {
    std::size_t last = at - 1;
    while (last > begin && (static_cast<unsigned char>(word[last]) & 0xC0U) == 0x80U) --last;
    if (!joined.contains(std::string(word.substr(last, at - last)))) return at;
  }
  return word.size();
}

void BpeEncoder::encode(std::string_view word, std::vector<std::int32_t>& ids) {
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
  start_.clear();
  if (model_.characters) {
    start_characters(word);
  } else {
    start_bytes(word);
  }
  if (start_.size() <= kFewSymbols) return merge_few(ids);
  merge_many(ids);
}

void BpeEncoder::start_bytes(std::string_view word) {
  for (const char c : word) start_.push_back(model_.byte_ids[static_cast<unsigned char>(c)]);
}

void BpeEncoder::start_characters(std::string_view word) {
  const CharacterTokens& tokens = *model_.characters;
  bool unknown = false;  // one waits for its neighbours
  const auto end_unknown = [&] {
    if (std::exchange(unknown, false)) start_.push_back(*tokens.unknown);
  };
  for_each_character(word, [&](char32_t, std::string_view character) {
    const auto byte_id = [&](char c) { return tokens.byte_ids[static_cast<unsigned char>(c)]; };
    if (const auto known = tokens.ids.find(std::string(character)); known != tokens.ids.end()) {
      end_unknown();
      start_.push_back(known->second);
    } else if (std::ranges::all_of(character, [&](char c) { return byte_id(c) >= 0; })) {
      for (const char c : character) start_.push_back(byte_id(c));
    } else if (tokens.unknown) {
      if (!tokens.fuse_unknown) end_unknown();
      unknown = true;
    }
  });
  end_unknown();
}

// Of a few symbols looking at all is quicker than a queue.
void BpeEncoder::merge_few(std::vector<std::int32_t>& ids) {
  constexpr BpeModel::Merge kNone{.rank = INT32_MAX, .result = -1};
  const auto merge_at = [&](std::size_t i) {
    const BpeModel::Merge* merge = find(start_[i], start_[i + 1]);
    return merge ? *merge : kNone;
  };
  const auto at = [](auto& all, std::size_t i) {
    return all.begin() + static_cast<std::ptrdiff_t>(i);
  };
  pair_.clear();
  for (std::size_t i = 0; i + 1 < start_.size(); ++i) pair_.push_back(merge_at(i));
  while (!pair_.empty()) {
    const auto best = std::ranges::min_element(pair_, {}, &BpeModel::Merge::rank);
    if (best->rank == INT32_MAX) break;
    const auto left = static_cast<std::size_t>(best - pair_.begin());
    start_[left] = best->result;
    start_.erase(at(start_, left + 1));
    pair_.erase(at(pair_, left));
    if (left < pair_.size()) pair_[left] = merge_at(left);
    if (left > 0) pair_[left - 1] = merge_at(left - 1);
  }
  ids.insert(ids.end(), start_.begin(), start_.end());
}

void BpeEncoder::merge_many(std::vector<std::int32_t>& ids) const {
  const auto count = static_cast<std::int32_t>(start_.size());
  std::vector<Symbol> symbols;
  symbols.reserve(start_.size());
  for (std::int32_t i = 0; i < count; ++i)
    symbols.push_back({start_[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  const auto symbol = [&](std::int32_t i) -> Symbol& {
    return symbols[static_cast<std::size_t>(i)];
  };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto consider = [&](std::int32_t left) {
    if (left < 0 || symbol(left).next < 0) return;
    const std::int32_t left_id = symbol(left).id, right_id = symbol(symbol(left).next).id;
    if (const BpeModel::Merge* merge = find(left_id, right_id))
      queue.push({merge->rank, left, left_id, right_id});
  };
  for (std::int32_t i = 0; i < count; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbol(best.left);
    if (left.id != best.left_id || left.next < 0) continue;  // merged away since it was queued
    Symbol& right = symbol(left.next);
    if (right.id != best.right_id) continue;
    left.id = find(best.left_id, best.right_id)->result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbol(left.next).previous = best.left;
    consider(left.previous);
    consider(best.left);
  }
  for (std::int32_t i = 0; i >= 0; i = symbol(i).next) ids.push_back(symbol(i).id);
}

}  // namespace tessera::io
