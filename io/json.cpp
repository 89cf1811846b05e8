#include "io/json.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "core/error.hpp"

namespace tessera::io {
namespace {

using nlohmann::json;

constexpr std::size_t kShownBytes = 60;
constexpr int kDeepest = 256;  // whoever walks a value may do so by recursion

std::string excerpt(const json& value) {
  if (value.is_structured()) return fmt::format("an {} of {}", value.type_name(), value.size());
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kShownBytes) text = text.substr(0, kShownBytes) + "...";
  return text;
}

/// The library's message without its own name, and without "line 1" where the text is one line, as
/// of JSON lines, whose number in the file is another.
std::string_view place_and_problem(std::string_view message) {
  for (const std::string_view ahead : {"parse error at ", "line 1, "}) {
    const std::size_t found = message.find(ahead);
    if (found != std::string_view::npos) message.remove_prefix(found + ahead.size());
  }
  return message;
}

/// Throws DataError for what is not JSON, gives a name twice in one object or is nested too deeply.
/// (A parser's callback could do that too, but nlohmann's looks at all earlier items after each:
/// quadratic.)
class Validator : public nlohmann::json_sax<json> {
 public:
  explicit Validator(const std::string& file) : file_(file) {}

  bool key(string_t& name) override {
    if (names_.back().insert(name).second) return true;
    throw DataError(
        fmt::format("{}: the name {} appears twice in one object", file_, excerpt(name)));
  }
  bool start_object(std::size_t) override {
    names_.emplace_back();
    return go_deeper();
  }
  bool end_object() override {
    names_.pop_back();
    return --depth_, true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
    throw DataError(fmt::format("{}: not valid JSON: {}", file_, place_and_problem(error.what())));
  }
  bool start_array(std::size_t) override { return go_deeper(); }
  bool end_array() override { return --depth_, true; }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }

 private:
  bool go_deeper() {
    if (++depth_ <= kDeepest) return true;
    throw DataError(fmt::format("{}: more than {} values within each other", file_, kDeepest));
  }

  const std::string& file_;
  std::vector<std::unordered_set<std::string>> names_;  // of the objects that are open
  int depth_ = 0;
};

json parse(std::string_view text, const std::string& file) {
  Validator validator(file);
  json::sax_parse(text, &validator);
  return json::parse(text);
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

void JsonCursor::unsupported(std::string_view message) const {
  throw UnsupportedError(fmt::format("{}: {}", place(), message));
}

std::string JsonCursor::shown() const { return excerpt(*value_); }

void JsonCursor::expected(std::string_view what) const {
  fail(fmt::format("expected {}, found {}", what, shown()));
}

std::optional<JsonCursor> JsonCursor::find(std::string_view key) const {
  if (!value_->is_object()) expected("an object");
  const auto member = value_->find(key);
  if (member == value_->end() || member->is_null()) return std::nullopt;
  return JsonCursor(*member, *file_, fmt::format("{}.{}", path_, key));
}

JsonCursor JsonCursor::operator[](std::string_view key) const {
  const auto member = find(key);
  if (!member) fail(fmt::format("\"{}\" is missing", key));
  return *member;
}

std::int64_t JsonCursor::integer(std::int64_t least, std::int64_t most) const {
  if (!is_integer()) expected("an integer");
  const auto n = value_->get<std::int64_t>();
  if (n < least || n > most) expected(fmt::format("an integer from {} to {}", least, most));
  return n;
}

double JsonCursor::number() const {
  if (!value_->is_number()) expected("a number");
  return value_->get<double>();
}

bool JsonCursor::boolean() const {
  if (!value_->is_boolean()) expected("true or false");
  return value_->get<bool>();
}

bool JsonCursor::flag(std::string_view key, bool otherwise) const {
  const auto member = find(key);
  return member ? member->boolean() : otherwise;
}

const std::string& JsonCursor::text() const {
  if (!value_->is_string()) expected("a string");
  return value_->get_ref<const std::string&>();
}

bool JsonCursor::is_integer() const {
  return value_->is_number_integer() &&
         !(value_->is_number_unsigned() && value_->get<std::uint64_t>() > INT64_MAX);
}
bool JsonCursor::is_boolean() const { return value_->is_boolean(); }
bool JsonCursor::is_text() const { return value_->is_string(); }
bool JsonCursor::is_array() const { return value_->is_array(); }
bool JsonCursor::is_object() const { return value_->is_object(); }

std::int64_t JsonCursor::size() const {
  if (!value_->is_structured()) expected("an object or array");
  return static_cast<std::int64_t>(value_->size());
}

void JsonCursor::for_each_member(
    const std::function<void(const std::string&, const JsonCursor&)>& visit) const {
  if (!value_->is_object()) expected("an object");
  for (const auto& [key, member] : value_->items()) {
    visit(key, JsonCursor(member, *file_, fmt::format("{}.{}", path_, key)));
  }
}

void JsonCursor::for_each_item(const std::function<void(const JsonCursor&)>& visit) const {
  if (!value_->is_array()) expected("an array");
  for (std::size_t i = 0; i < value_->size(); ++i) {
    visit(JsonCursor((*value_)[i], *file_, fmt::format("{}[{}]", path_, i)));
  }
}

std::vector<JsonCursor> JsonCursor::items(std::int64_t least, std::int64_t most) const {
  if (!value_->is_array() || size() < least || size() > most) {
    expected(least == most ? fmt::format("an array of {}", least)
                           : fmt::format("an array of {} to {}", least, most));
  }
  std::vector<JsonCursor> all;
  for_each_item([&](const JsonCursor& item) { all.push_back(item); });
  return all;
}

}  // namespace tessera::io
