// How each C++ type of a deck member reads from a Value, writes to one, and is called in messages.
// read() gives nothing when the value does not fit; the caller then says what type() wants.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "core/error.hpp"
#include "deck/deck.hpp"
#include "deck/value.hpp"

namespace tessera::deck {

/// "12GiB" -> bytes; units B, KiB, MiB, GiB, TiB and decimal KB, MB, GB, TB. Nothing on bad syntax
/// or overflow.
std::optional<std::int64_t> parse_bytes(std::string_view text);

/// "[d-]hh:mm:ss" -> seconds. Nothing on bad syntax or overflow.
std::optional<std::int64_t> parse_seconds(std::string_view text);

template <typename T>
struct Codec;

template <>
struct Codec<bool> {
  static std::string type() { return "true or false"; }
  static std::optional<bool> read(const Value& value) {
    const bool* held = value.as<bool>();
    return held ? std::optional(*held) : std::nullopt;
  }
  static Value write(bool value) { return {value, {}}; }
};

template <>
struct Codec<std::int64_t> {
  static std::string type() { return "an integer"; }
  static std::optional<std::int64_t> read(const Value& value) {
    const auto* held = value.as<std::int64_t>();
    return held ? std::optional(*held) : std::nullopt;
  }
  static Value write(std::int64_t value) { return {value, {}}; }
};

/// Finite only; an integer will do.
template <>
struct Codec<double> {
  static std::string type() { return "a number"; }
  static std::optional<double> read(const Value& value) {
    if (const auto* integer = value.as<std::int64_t>()) return static_cast<double>(*integer);
    const auto* held = value.as<double>();
    return held && std::isfinite(*held) ? std::optional(*held) : std::nullopt;
  }
  static Value write(double value) { return {value, {}}; }
};

template <>
struct Codec<std::string> {
  static std::string type() { return "a string"; }
  static std::optional<std::string> read(const Value& value) {
    const auto* held = value.as<std::string>();
    return held && !held->empty() ? std::optional(*held) : std::nullopt;
  }
  static Value write(const std::string& value) { return {value, {}}; }
};

template <typename E>
requires std::is_enum_v<E>
struct Codec<E> {
  static std::string type() {
    constexpr bool kSingle = EnumWords<E>::table.size() == 1;
    return (kSingle ? "" : "one of ") + enum_choices<E>();
  }
  static std::optional<E> read(const Value& value) {
    const auto* word = value.as<std::string>();
    return word ? enum_from_word<E>(*word) : std::nullopt;
  }
  static Value write(E value) { return {std::string(enum_word(value)), {}}; }
};

template <>
struct Codec<Bytes> {
  static std::string type() { return "bytes as an integer or like \"12GiB\""; }
  static std::optional<Bytes> read(const Value& value) {
    if (const auto* count = value.as<std::int64_t>()) return Bytes{*count};
    const auto* text = value.as<std::string>();
    const auto count = text ? parse_bytes(*text) : std::nullopt;
    return count ? std::optional(Bytes{*count}) : std::nullopt;
  }
  static Value write(Bytes value) { return {value.count, {}}; }
};

template <>
struct Codec<Seconds> {
  static std::string type() { return "seconds as an integer or \"hh:mm:ss\""; }
  static std::optional<Seconds> read(const Value& value) {
    if (const auto* count = value.as<std::int64_t>()) return Seconds{*count};
    const auto* text = value.as<std::string>();
    const auto count = text ? parse_seconds(*text) : std::nullopt;
    return count ? std::optional(Seconds{*count}) : std::nullopt;
  }
  static Value write(Seconds value) { return {value.count, {}}; }
};

template <typename T>
struct Codec<std::optional<T>> {
  static std::string type() { return Codec<T>::type(); }
  static std::optional<std::optional<T>> read(const Value& value) {
    if (value.unset()) return std::make_optional<std::optional<T>>();
    auto held = Codec<T>::read(value);
    if (!held) return std::nullopt;
    return std::make_optional<std::optional<T>>(std::move(held));
  }
  static Value write(const std::optional<T>& value) {
    return value ? Codec<T>::write(*value) : Value{};
  }
};

template <typename T>
struct Codec<std::vector<T>> {
  static std::string type() { return fmt::format("a list, each {}", Codec<T>::type()); }
  static std::optional<std::vector<T>> read(const Value& value) {
    const List* list = value.as<List>();
    if (!list) return std::nullopt;
    std::vector<T> items;
    for (const Value& element : *list) {
      auto item = Codec<T>::read(element);
      if (!item) return std::nullopt;
      items.push_back(*std::move(item));
    }
    return items;
  }
  static Value write(const std::vector<T>& items) {
    List list;
    for (const T& item : items) list.push_back(Codec<T>::write(item));
    return {std::move(list), {}};
  }
};

template <typename T, std::size_t N>
struct Codec<std::array<T, N>> {
  static std::string type() { return fmt::format("a list of {}, each {}", N, Codec<T>::type()); }
  static std::optional<std::array<T, N>> read(const Value& value) {
    const auto items = Codec<std::vector<T>>::read(value);
    if (!items || items->size() != N) return std::nullopt;
    std::array<T, N> out = {};
    std::copy(items->begin(), items->end(), out.begin());
    return out;
  }
  static Value write(const std::array<T, N>& items) {
    return Codec<std::vector<T>>::write({items.begin(), items.end()});
  }
};

template <>
struct Codec<LengthEntry> {
  using Pair = std::array<std::int64_t, 2>;
  static std::string type() { return "[step, length]"; }
  static std::optional<LengthEntry> read(const Value& value) {
    const auto pair = Codec<Pair>::read(value);
    return pair ? std::optional(LengthEntry{.step = (*pair)[0], .length = (*pair)[1]})
                : std::nullopt;
  }
  static Value write(const LengthEntry& entry) {
    return Codec<Pair>::write({entry.step, entry.length});
  }
};

template <>
struct Codec<RampEntry> {
  using Pair = std::array<std::int64_t, 2>;
  static std::string type() { return "[step, global]"; }
  static std::optional<RampEntry> read(const Value& value) {
    const auto pair = Codec<Pair>::read(value);
    return pair ? std::optional(RampEntry{.step = (*pair)[0], .global = (*pair)[1]}) : std::nullopt;
  }
  static Value write(const RampEntry& entry) {
    return Codec<Pair>::write({entry.step, entry.global});
  }
};

/// What of the value is no group; empty where `group` is what it says.
std::string read_group(const Value& value, ParameterGroup& group);

template <>
struct Codec<ParameterGroup> {
  static std::string type() {
    return "a table like {match = \"*.bias\", lr_factor = 0.5, weight_decay = 0.0}";
  }
  static std::optional<ParameterGroup> read(const Value& value) {
    ParameterGroup group;
    return read_group(value, group).empty() ? std::optional(std::move(group)) : std::nullopt;
  }
  static Value write(const ParameterGroup& group);
};

/// What of the value is no entry of data.train; empty where `entry` is what it says.
std::string read_entry(const Value& value, DataEntry& entry);

template <>
struct Codec<DataEntry> {
  static std::string type() {
    return "a string, or a table like {path = \"PREFIX\", weight = 0.5} or {path = \"PREFIX\", "
           "epochs "
           "= 2.0}";
  }
  static std::optional<DataEntry> read(const Value& value) {
    DataEntry entry;
    return read_entry(value, entry).empty() ? std::optional(std::move(entry)) : std::nullopt;
  }
  static Value write(const DataEntry& entry);
};

/// What of the value is no curriculum; empty where `curriculum` is what it says.
std::string read_curriculum(const Value& value, Curriculum& curriculum);

/// An empty table is no curriculum.
template <>
struct Codec<Curriculum> {
  static std::string type() {
    return "a table like {start = 64, end = 1024, steps = 10000, round = 8} or {table = [[0, 64], "
           "[500, 128]]}, or {}";
  }
  static std::optional<Curriculum> read(const Value& value) {
    Curriculum curriculum;
    return read_curriculum(value, curriculum).empty() ? std::optional(std::move(curriculum))
                                                      : std::nullopt;
  }
  static Value write(const Curriculum& curriculum);
};

template <>
struct Codec<Fault> {
  static std::string type() { return "a fault like \"kill rank=1 step=5\""; }
  static std::optional<Fault> read(const Value& value) {
    const auto* text = value.as<std::string>();
    try {
      return text ? std::optional(parse_fault(*text)) : std::nullopt;
    } catch (const DeckError&) {
      return std::nullopt;  // Problem says why
    }
  }
  static Value write(const Fault& fault) { return {to_text(fault), {}}; }
};

/// A word, or else a value of another type: the word wins.
template <typename E, typename T>
struct Codec<std::variant<E, T>> {
  static std::string type() { return Codec<E>::type() + ", or " + Codec<T>::type(); }
  static std::optional<std::variant<E, T>> read(const Value& value) {
    if (const auto word = Codec<E>::read(value)) return *word;
    if (auto other = Codec<T>::read(value)) return *std::move(other);
    return std::nullopt;
  }
  static Value write(const std::variant<E, T>& value) {
    if (const E* word = std::get_if<E>(&value)) return Codec<E>::write(*word);
    return Codec<T>::write(std::get<T>(value));
  }
};

/// The words of a member's type, for "did you mean"; empty where it has none.
template <typename T>
struct Words {
  static std::vector<std::string_view> list() {
    std::vector<std::string_view> words;
    if constexpr (std::is_enum_v<T>) {
      for (const auto& [value, word] : EnumWords<T>::table) words.push_back(word);
    }
    return words;
  }
};
template <typename T>
struct Words<std::optional<T>> : Words<T> {};
template <typename E, typename T>
struct Words<std::variant<E, T>> : Words<E> {};

/// What exactly does not fit in a value that read() refused, where the type can say; else empty.
template <typename T>
struct Problem {
  static std::string of(const Value&) { return ""; }
};
template <>
struct Problem<Fault> {
  static std::string of(const Value& value) {
    const auto* text = value.as<std::string>();
    try {
      if (text) parse_fault(*text);
    } catch (const DeckError& error) {
      return fmt::format("\"{}\": {}", *text, error.what());
    }
    return "";
  }
};
template <>
struct Problem<ParameterGroup> {
  static std::string of(const Value& value) {
    ParameterGroup group;
    return read_group(value, group);
  }
};
template <>
struct Problem<Curriculum> {
  static std::string of(const Value& value) {
    Curriculum curriculum;
    return read_curriculum(value, curriculum);
  }
};
template <>
struct Problem<DataEntry> {
  static std::string of(const Value& value) {
    DataEntry entry;
    return read_entry(value, entry);
  }
};
template <typename T>
struct Problem<std::vector<T>> {
  static std::string of(const Value& value) {
    const List* list = value.as<List>();
    if (!list) return "";
    for (const Value& element : *list) {
      if (auto problem = Problem<T>::of(element); !problem.empty()) return problem;
    }
    return "";
  }
};

}  // namespace tessera::deck
