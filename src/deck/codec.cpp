#include "deck/codec.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

#include "deck/names.hpp"

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

namespace {

/// A table of the members that have a value.
Value table_of(std::vector<std::pair<const char*, Value>> members) {
  Table table;
  for (auto& [key, value] : members) {
    if (!value.unset()) table.push_back({key, {}, std::move(value)});
  }
  return {std::move(table), {}};
}

/// Sets a member of a group; false: the value is not of its kind.
bool set_member(ParameterGroup& group, std::string_view key, const Value& value) {
  const auto number = [&] {
    constexpr double kLargest = std::numeric_limits<float>::max();  // an update counts in f32
    const auto read = Codec<double>::read(value);
    return read && *read >= 0 && *read <= kLargest ? read : std::nullopt;
  };
  if (key == "lr_factor") {
    const auto factor = number();
    group.lr_factor = factor.value_or(1);
    return factor.has_value();
  }
  if (key == "weight_decay") return (group.weight_decay = number()).has_value();
  const auto text = Codec<std::string>::read(value);
  (key == "match" ? group.match : group.name) = text.value_or("");
  return text.has_value();
}

}  // namespace

std::string read_group(const Value& value, ParameterGroup& group) {
  const Table* table = value.as<Table>();
  if (table == nullptr) return fmt::format("{} is no table", value_excerpt(value));
  constexpr std::array<std::string_view, 4> kKeys = {"match", "name", "lr_factor", "weight_decay"};
  for (const TableMember& member : *table) {
    if (std::ranges::find(kKeys, member.key) == kKeys.end()) {
      const std::string_view near = nearest_name(member.key, kKeys);
      return fmt::format("{} is no key of a group{}", key_text(member.key),
                         near.empty() ? "" : fmt::format(" (did you mean {}?)", near));
    }
    if (!set_member(group, member.key, member.value)) {
      const bool is_text = member.key == "match" || member.key == "name";
      return fmt::format(
          "{} = {} must be {}{}", member.key, value_excerpt(member.value),
          is_text ? "a string" : "a number >= 0 as an f32",
          member.value.as<std::string>() != nullptr && is_text ? ": it is empty" : "");
    }
  }
  if (group.match.empty()) return "match is missing: a pattern of names, such as \"*.bias\"";
  if (group.name.empty()) group.name = group.match;
  return "";
}

Value Codec<ParameterGroup>::write(const ParameterGroup& group) {
  return table_of({{"match", Codec<std::string>::write(group.match)},
                   {"name", Codec<std::string>::write(group.name)},
                   {"lr_factor", Codec<double>::write(group.lr_factor)},
                   {"weight_decay", Codec<std::optional<double>>::write(group.weight_decay)}});
}

std::vector<std::string> paths_of(const std::vector<DataEntry>& entries) {
  std::vector<std::string> paths;
  for (const DataEntry& entry : entries) paths.push_back(entry.path);
  return paths;
}

bool is_mixture(const DataSection& section) {
  return std::ranges::any_of(section.train,
                             [](const DataEntry& e) { return e.weight || e.epochs; });
}

std::string read_entry(const Value& value, DataEntry& entry) {
  if (const auto path = Codec<std::string>::read(value)) {
    entry.path = *path;
    return "";
  }
  const Table* table = value.as<Table>();
  if (table == nullptr) return fmt::format("{} is no path of token files", value_excerpt(value));
  constexpr std::array<std::string_view, 3> kKeys = {"path", "weight", "epochs"};
  for (const TableMember& member : *table) {
    if (member.key == "path") {
      entry.path = Codec<std::string>::read(member.value).value_or("");
      if (entry.path.empty())
        return fmt::format("path = {} must be a string", value_excerpt(member.value));
      continue;
    }
    if (std::ranges::find(kKeys, member.key) == kKeys.end()) {
      const std::string_view near = nearest_name(member.key, kKeys);
      return fmt::format("{} is no key of an entry{}", key_text(member.key),
                         near.empty() ? "" : fmt::format(" (did you mean {}?)", near));
    }
    const auto number = Codec<double>::read(member.value);
    if (!number || *number <= 0 || *number > 1e9) {
      return fmt::format("{} = {} must be a number > 0 and <= 1e9", member.key,
                         value_excerpt(member.value));
    }
    (member.key == "weight" ? entry.weight : entry.epochs) = number;
  }
  if (entry.path.empty()) return "path is missing: the prefix of token files";
  if (entry.weight && entry.epochs) return "weight and epochs are both given: one says all";
  return "";
}

Value Codec<DataEntry>::write(const DataEntry& entry) {
  if (!entry.weight && !entry.epochs) return Codec<std::string>::write(entry.path);
  return table_of({{"path", Codec<std::string>::write(entry.path)},
                   {"weight", Codec<std::optional<double>>::write(entry.weight)},
                   {"epochs", Codec<std::optional<double>>::write(entry.epochs)}});
}

}  // namespace tessera::deck
