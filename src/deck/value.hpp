// A deck's values before they have a type, and where in which file they are given: the little that
// the rest of the folder needs to know about TOML.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera::deck {

/// Where a value or a section was given. Column 0: by the `line`-th --set. Line 0: somewhere in
/// `file`.
struct SourceLocation {
  std::string file;
  int line = 1;
  int column = 1;

  /// "deck.toml:31:10", "--set #2" or the file's text.
  std::string text() const;
};

struct Value;
struct TableMember;
using List = std::vector<Value>;
using Table = std::vector<TableMember>;

/// A TOML date or time; no key takes one. It has a copy constructor of its own, so that the variant
/// below is one that may be left without a value. A variant of which GCC 12's library thinks that
/// it never is (each alternative is trivial, a string or a vector) jumps anywhere where memory for
/// a copy is refused.
struct Date {
  Date() = default;
  ~Date() = default;
  Date(const Date&) noexcept {}                            // NOLINT(modernize-use-equals-default)
  Date& operator=(const Date&) noexcept { return *this; }  // NOLINT(modernize-use-equals-default)
  bool operator==(const Date&) const { return true; }
};

/// An empty value (monostate) is an unset key.
struct Value {
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Date, List, Table> data;
  SourceLocation place;

  bool unset() const { return std::holds_alternative<std::monostate>(data); }
  template <typename T>
  const T* as() const {
    return std::get_if<T>(&data);
  }
};

struct TableMember {
  std::string key;
  SourceLocation key_place;
  Value value;
};

/// Compares values, not places.
bool operator==(const Value& a, const Value& b);
bool operator==(const TableMember& a, const TableMember& b);

/// The value as TOML: strings quoted and escaped, numbers in their shortest exact form.
std::string value_text(const Value& value);

/// The same for messages: long ones are cut.
std::string value_excerpt(const Value& value);

/// A key as TOML: quoted unless it is a bare key.
std::string key_text(std::string_view key);

}  // namespace tessera::deck
