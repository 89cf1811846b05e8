// Words for enums: one table gives to_string, from_string and the list that error messages show.
// Decks, logs and messages use the same words.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tessera {

/// Specialise as: template <> struct EnumWords<E> { static constexpr std::array table =
/// {std::pair{E::a, "a"}, ...}; };
template <typename E>
struct EnumWords;

template <typename E>
constexpr std::string_view enum_word(E value) {
  for (const auto& [v, word] : EnumWords<E>::table) {
    if (v == value) return word;
  }
  return "?";
}

template <typename E>
constexpr std::optional<E> enum_from_word(std::string_view text) {
  for (const auto& [v, word] : EnumWords<E>::table) {
    if (text == word) return v;
  }
  return std::nullopt;
}

/// "none|int8|auto"
template <typename E>
std::string enum_choices() {
  std::string all;
  for (const auto& [v, word] : EnumWords<E>::table) {
    if (!all.empty()) all += '|';
    all += word;
  }
  return all;
}

}  // namespace tessera
