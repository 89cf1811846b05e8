#include "deck/codec.hpp"

#include <charconv>
#include <limits>

namespace tessera::deck {

namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

/// Digits at the front of `text`, which then begins after them.
std::optional<std::int64_t> take_digits(std::string_view& text) {
  std::int64_t number = 0;
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, char wanted) {
  if (text.empty() || text[0] != wanted) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  constexpr std::int64_t k = 1000, ki = 1024;
  constexpr std::array<std::pair<std::string_view, std::int64_t>, 9> kUnits = {
      {{"B", 1},
       {"KiB", ki},
       {"MiB", ki * ki},
       {"GiB", ki * ki * ki},
       {"TiB", ki * ki * ki * ki},
       {"KB", k},
       {"MB", k * k},
       {"GB", k * k * k},
       {"TB", k * k * k * k}}};
  const auto number = take_digits(text);
  if (!number) return std::nullopt;
  while (take(text, ' ')) continue;
  for (const auto& [unit, bytes] : kUnits) {
    if (text == unit && *number <= kMax / bytes) return *number * bytes;
  }
  return std::nullopt;
}

std::optional<std::int64_t> parse_seconds(std::string_view text) {
  constexpr std::int64_t kDay = 24 * 3600;
  auto first = take_digits(text);
  if (!first) return std::nullopt;
  std::int64_t days = 0;
  if (take(text, '-')) {
    days = *first;
    first = take_digits(text);
  }
  if (!first || !take(text, ':')) return std::nullopt;
  const auto minutes = take_digits(text);
  if (!minutes || !take(text, ':')) return std::nullopt;
  const auto seconds = take_digits(text);
  if (!seconds || !text.empty() || *minutes > 59 || *seconds > 59) return std::nullopt;
  if (days > kMax / kDay / 4 || *first > kMax / 3600 / 4) return std::nullopt;
  return days * kDay + *first * 3600 + *minutes * 60 + *seconds;
}

}  // namespace tessera::deck
