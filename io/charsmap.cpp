#include "io/charsmap.hpp"

#include <algorithm>
#include <cstring>

#include "core/error.hpp"
#include "io/unicode.hpp"

namespace tessera::io {
namespace {

constexpr std::size_t kLongestCluster = 5;

// A unit of the trie.
bool has_value(std::uint32_t unit) { return (unit >> 8 & 1) == 1; }
std::uint32_t value_of(std::uint32_t unit) { return unit & 0x7fffffffU; }
std::uint32_t label_of(std::uint32_t unit) { return unit & 0x800000ffU; }
std::uint32_t offset_of(std::uint32_t unit) { return (unit >> 10) << ((unit & 0x200U) >> 6); }

std::string decode_base64(const JsonCursor& cursor) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string_view text = cursor.text();
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) cursor.expected("base64");
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xff);
  }
  return bytes;
}

}  // namespace

Charsmap::Charsmap(const JsonCursor& base64) {
  const std::string bytes = decode_base64(base64);
  std::uint32_t trie_bytes = 0;
  if (bytes.size() >= sizeof trie_bytes) std::memcpy(&trie_bytes, bytes.data(), sizeof trie_bytes);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > bytes.size() - sizeof trie_bytes) {
    base64.fail(fmt::format("{} bytes, which are no table of characters: truncated or damaged",
                            bytes.size()));
  }
  units_.resize(trie_bytes / 4);
  std::memcpy(units_.data(), bytes.data() + sizeof trie_bytes, trie_bytes);
  texts_ = bytes.substr(sizeof trie_bytes + trie_bytes);
}

std::optional<std::string_view> Charsmap::find(std::string_view text) const {
  std::size_t at = offset_of(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    at ^= byte;
    if (byte == 0 || at >= units_.size() || label_of(units_[at]) != byte) return std::nullopt;
    const std::uint32_t unit = units_[at];
    at ^= offset_of(unit);
    if (!has_value(unit)) continue;
    if (at >= units_.size()) return std::nullopt;
    const std::size_t begin = value_of(units_[at]);
    if (begin > texts_.size()) return std::nullopt;
    const std::string_view rest = std::string_view(texts_).substr(begin);
    return rest.substr(0, rest.find('\0'));
  }
  return std::nullopt;
}

void Charsmap::append_characters(std::string_view text, std::string& out) const {
  for_each_character(text, [&](char32_t, std::string_view character) {
    out += find(character).value_or(character);
  });
}

std::string Charsmap::apply(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  for_each_grapheme(text, [&](std::string_view cluster) {
    const auto whole = cluster.size() <= kLongestCluster ? find(cluster) : std::nullopt;
    if (whole) {
      out += *whole;
    } else {
      append_characters(cluster, out);
    }
  });
  return out;
}

}  // namespace tessera::io
