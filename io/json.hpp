// JSON that other people wrote: a checked walk in which every complaint names the file and the
// place in it ("tokenizer.json: $.model.vocab: ..."). All errors are DataErrors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace tessera::io {

/// For what is well-formed, but of a kind that is not read here.
struct UnsupportedError : DataError {
  using DataError::DataError;
};

/// One value of a JsonDocument, which must outlive it.
class JsonCursor {
 public:
  JsonCursor(const nlohmann::json& value, const std::string& file, std::string path)
      : value_(&value), file_(&file), path_(std::move(path)) {}

  /// A member of this object: required, or absent (missing and null are the same).
  JsonCursor operator[](std::string_view key) const;
  std::optional<JsonCursor> find(std::string_view key) const;

  std::int64_t integer(std::int64_t least = INT64_MIN, std::int64_t most = INT64_MAX) const;
  double number() const;  // finite
  bool boolean() const;
  /// The boolean member `key` of this object, or what it is where that is absent.
  bool flag(std::string_view key, bool otherwise = false) const;
  const std::string& text() const;
  const nlohmann::json& raw() const { return *value_; }

  bool is_integer() const;
  bool is_boolean() const;
  bool is_text() const;
  bool is_array() const;
  bool is_object() const;

  std::int64_t size() const;  // of an array or object
  void for_each_member(
      const std::function<void(const std::string& key, const JsonCursor&)>& visit) const;
  void for_each_item(const std::function<void(const JsonCursor&)>& visit) const;
  /// The items of an array that has `least` to `most` of them.
  std::vector<JsonCursor> items(std::int64_t least, std::int64_t most) const;

  /// The value as a message shows it: short and printable.
  std::string shown() const;
  /// "file: $.path"
  std::string place() const { return *file_ + ": " + path_; }
  [[noreturn]] void fail(std::string_view message) const;
  /// The same as an UnsupportedError.
  [[noreturn]] void unsupported(std::string_view message) const;
  /// "expected ..., found ..."
  [[noreturn]] void expected(std::string_view what) const;

 private:
  const nlohmann::json* value_;
  const std::string* file_;
  std::string path_;
};

/// Parsed text. An object that gives a name twice is refused: readers differ on which one counts.
class JsonDocument {
 public:
  JsonDocument(std::string_view text, std::string file);
  JsonDocument(JsonDocument&&) noexcept;
  ~JsonDocument();

  JsonCursor root() const { return {*value_, *file_, "$"}; }

 private:
  std::unique_ptr<const std::string> file_;  // cursors point to it: it must not move
  std::unique_ptr<const nlohmann::json> value_;
};

}  // namespace tessera::io
