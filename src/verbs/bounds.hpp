// The bounds of a number that an option takes, in words, in its help as in what refuses it.
#pragma once

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <optional>
#include <string>
#include <type_traits>

namespace tessera::verbs {

/// "at least 1", or "1 to 4096".
template <typename T>
CLI::Validator bounds(T low, std::optional<T> high = std::nullopt) {
  const std::string words =
      high ? fmt::format("{} to {}", low, *high) : fmt::format("at least {}", low);
  const auto refuse = [=](const std::string& text) {
    T value{};
    const bool good = CLI::detail::lexical_cast(text, value) && value >= low;
    if (good && (!high || value <= *high)) return std::string();
    return fmt::format("{} must be {}, {}", text, std::is_integral_v<T> ? "an integer" : "a number",
                       words);
  };
  return {refuse, words};
}

}  // namespace tessera::verbs
