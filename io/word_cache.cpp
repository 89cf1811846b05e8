#include "io/word_cache.hpp"

#include <xxhash.h>

#include <cstring>

namespace tessera::io {
namespace {

constexpr std::size_t kSlots = std::size_t{1} << 18;
constexpr std::size_t kMostWords = kSlots / 2;

}  // namespace

WordCache::WordCache() = default;

std::uint64_t WordCache::hash_of(std::string_view word) {
  return XXH3_64bits(word.data(), word.size());
}

const WordCache::Entry* WordCache::find(std::string_view word, std::uint64_t hash) const {
  if (table_.empty()) return nullptr;
  for (std::size_t slot = hash % kSlots; table_[slot].used; slot = (slot + 1) % kSlots) {
    const Entry& entry = table_[slot];
    if (entry.hash == hash && entry.length == word.size() &&
        std::memcmp(text_.data() + entry.text, word.data(), word.size()) == 0) {
      return &entry;
    }
  }
  return nullptr;
}

void WordCache::keep(std::string_view word, std::uint64_t hash, std::span<const std::int32_t> ids) {
  if (words_ == kMostWords || table_.empty()) forget_all();
  std::size_t slot = hash % kSlots;
  while (table_[slot].used) slot = (slot + 1) % kSlots;
  table_[slot] = {.hash = hash,
                  .text = static_cast<std::uint32_t>(text_.size()),
                  .first = static_cast<std::uint32_t>(ids_.size()),
                  .length = static_cast<std::uint16_t>(word.size()),
                  .count = static_cast<std::uint16_t>(ids.size()),
                  .used = true};
  text_ += word;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++words_;
}

void WordCache::forget_all() {
  table_.assign(kSlots, {});
  text_.clear();
  ids_.clear();
  words_ = 0;
}

}  // namespace tessera::io
