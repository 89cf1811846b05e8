#include "deck/value.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::deck {

namespace {

bool is_bare_key(std::string_view key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string number_text(double number) {
  std::string text = fmt::format("{}", number);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

struct Writer {
  std::string operator()(std::monostate) const { return "unset"; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const { return number_text(value); }
  std::string operator()(const std::string& value) const { return in_quotes(value); }
  std::string operator()(const Date&) const { return "(a date)"; }
  std::string operator()(const List& list) const {
    std::string out = "[";
    for (const Value& item : list) {
      if (out.size() > 1) out += ", ";
      out += value_text(item);
    }
    return out + "]";
  }
  std::string operator()(const Table& table) const {
    std::string out = "{";
    for (const TableMember& member : table) {
      if (out.size() > 1) out += ", ";
      out += fmt::format("{} = {}", key_text(member.key), value_text(member.value));
    }
    return out + "}";
  }
};

}  // namespace

std::string SourceLocation::text() const {
  if (line == 0) return file;
  if (column == 0) return fmt::format("{} #{}", file, line);
  return fmt::format("{}:{}:{}", file, line, column);
}

bool operator==(const Value& a, const Value& b) { return a.data == b.data; }

bool operator==(const TableMember& a, const TableMember& b) {
  return a.key == b.key && a.value == b.value;
}

std::string value_text(const Value& value) { return std::visit(Writer{}, value.data); }

std::string value_excerpt(const Value& value) {
  constexpr std::size_t kLongest = 120;
  std::string text = value_text(value);
  if (text.size() <= kLongest) return text;
  std::size_t end = kLongest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) --end;  // UTF-8 tail
  return text.substr(0, end) + "...";
}

std::string key_text(std::string_view key) {
  return is_bare_key(key) ? std::string(key) : in_quotes(key);
}

}  // namespace tessera::deck
