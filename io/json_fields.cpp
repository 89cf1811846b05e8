#include "io/json_fields.hpp"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace tessera {
namespace {

using nlohmann::json;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

[[noreturn]] void refuse(const char* key, const json& found, std::string_view allowed) {
  throw DataError(fmt::format("{}: found {}, must be {}", key, shown(found), allowed));
}

}  // namespace

json parse_json(std::string_view text, std::string_view name) {
  try {
    return json::parse(text);
  } catch (const json::exception& error) {
    throw DataError(fmt::format("{}: not JSON: {}", name, error.what()));
  }
}

const json& json_field(const json& object, const char* key) {
  if (!object.is_object()) throw DataError(fmt::format("{}: must be an object", shown(object)));
  const auto found = object.find(key);
  if (found == object.end()) throw DataError(fmt::format("{} is missing", key));
  return *found;
}

const json& json_array(const json& object, const char* key) {
  const json& value = json_field(object, key);
  if (!value.is_array()) refuse(key, value, "an array");
  return value;
}

std::int64_t json_integer(const json& object, const char* key, std::int64_t min, std::int64_t max) {
  try {
    return to_integer(json_field(object, key), min, max);
  } catch (Error& error) {
    error.add_context(key);
    throw;
  }
}

std::int64_t to_integer(const json& value, std::int64_t min, std::int64_t max) {
  const bool fits = value.is_number_unsigned()
                        ? value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max()
                        : value.is_number_integer();
  if (!fits || value.get<std::int64_t>() < min || value.get<std::int64_t>() > max)
    throw DataError(
        fmt::format("found {}, must be an integer from {} to {}", shown(value), min, max));
  return value.get<std::int64_t>();
}

double to_number(const json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return kInfinity;
  if (value == "-inf") return -kInfinity;
  throw DataError(fmt::format("found {}, must be a number, nan, inf or -inf", shown(value)));
}

double json_number(const json& object, const char* key) {
  try {
    return to_number(json_field(object, key));
  } catch (Error& error) {
    error.add_context(key);
    throw;
  }
}

std::string json_text(const json& object, const char* key) {
  const json& value = json_field(object, key);
  if (!value.is_string()) refuse(key, value, "a string");
  return value.get<std::string>();
}

json number_to_json(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

std::string shown(const json& value) {
  constexpr std::size_t kShown = 60;
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  if (value.is_object()) return fmt::format("an object of {}", value.size());
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return text;
}

}  // namespace tessera
