#include "io/json.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "core/error.hpp"

namespace tessera {
namespace {

using nlohmann::json;

constexpr std::size_t kShownBytes = 60;

std::string printable(const json& value) {
  if (value.is_structured()) return std::string(value.type_name());
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kShownBytes) text = text.substr(0, kShownBytes) + "...";
  return text;
}

json parse(std::string_view text, const std::string& file) {
  std::vector<std::unordered_set<std::string>> names;  // of the objects that are open
  const auto refuse_duplicates = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) names.emplace_back();
    if (event == json::parse_event_t::object_end) names.pop_back();
    if (event == json::parse_event_t::key &&
        !names.back().insert(value.get_ref<const std::string&>()).second) {
      throw DataError(
          fmt::format("{}: the name {} appears twice in one object", file, printable(value)));
    }
    return true;
  };
  try {
    return json::parse(text, refuse_duplicates);
  } catch (const json::exception& error) {
    throw DataError(fmt::format("{}: not valid JSON: {}", file, error.what()));
  }
}

}  // namespace

JsonDocument::JsonDocument(std::string_view text, std::string file)
    : file_(std::make_unique<const std::string>(std::move(file))),
      value_(std::make_unique<const json>(parse(text, *file_))) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

void JsonCursor::fail(std::string_view message) const {
  throw DataError(fmt::format("{}: {}", place(), message));
}

std::string JsonCursor::shown() const { return printable(*value_); }

void JsonCursor::wrong_type(std::string_view expected) const {
  fail(fmt::format("expected {}, found {}", expected, shown()));
}

std::optional<JsonCursor> JsonCursor::find(std::string_view key) const {
  if (!value_->is_object()) wrong_type("an object");
  const auto member = value_->find(key);
  if (member == value_->end() || member->is_null()) return std::nullopt;
  return JsonCursor(*member, *file_, fmt::format("{}.{}", path_, key));
}

JsonCursor JsonCursor::operator[](std::string_view key) const {
  const auto member = find(key);
  if (!member) fail(fmt::format("\"{}\" is missing", key));
  return *member;
}

std::int64_t JsonCursor::integer() const {
  if (!is_integer()) wrong_type("an integer");
  return value_->get<std::int64_t>();
}

double JsonCursor::number() const {
  if (!value_->is_number()) wrong_type("a number");
  return value_->get<double>();
}

bool JsonCursor::boolean() const {
  if (!value_->is_boolean()) wrong_type("true or false");
  return value_->get<bool>();
}

const std::string& JsonCursor::text() const {
  if (!value_->is_string()) wrong_type("a string");
  return value_->get_ref<const std::string&>();
}

bool JsonCursor::is_integer() const {
  return value_->is_number_integer() &&
         !(value_->is_number_unsigned() && value_->get<std::uint64_t>() > INT64_MAX);
}
bool JsonCursor::is_text() const { return value_->is_string(); }
bool JsonCursor::is_array() const { return value_->is_array(); }
bool JsonCursor::is_object() const { return value_->is_object(); }

std::int64_t JsonCursor::size() const {
  if (!value_->is_structured()) wrong_type("an object or array");
  return static_cast<std::int64_t>(value_->size());
}

void JsonCursor::for_each_member(
    const std::function<void(const std::string&, const JsonCursor&)>& visit) const {
  if (!value_->is_object()) wrong_type("an object");
  for (const auto& [key, member] : value_->items()) {
    visit(key, JsonCursor(member, *file_, fmt::format("{}.{}", path_, key)));
  }
}

void JsonCursor::for_each_item(const std::function<void(const JsonCursor&)>& visit) const {
  if (!value_->is_array()) wrong_type("an array");
  for (std::size_t i = 0; i < value_->size(); ++i) {
    visit(JsonCursor((*value_)[i], *file_, fmt::format("{}[{}]", path_, i)));
  }
}

}  // namespace tessera
