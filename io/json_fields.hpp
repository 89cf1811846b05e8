// Reading JSON that may be hostile: each accessor names the key, what was found and what is
// allowed in a DataError; each_item adds the place in an array to errors on their way out.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace tessera {

/// Parses a text; `name` is the file to show in the error.
nlohmann::json parse_json(std::string_view text, std::string_view name);

const nlohmann::json& json_field(const nlohmann::json& object, const char* key);
const nlohmann::json& json_array(const nlohmann::json& object, const char* key);
std::int64_t json_integer(const nlohmann::json& object, const char* key, std::int64_t min,
                          std::int64_t max);
std::int64_t to_integer(const nlohmann::json& value, std::int64_t min, std::int64_t max);
/// Also the words "nan", "inf" and "-inf", which JSON cannot write as numbers.
double json_number(const nlohmann::json& object, const char* key);
double to_number(const nlohmann::json& value);
std::string json_text(const nlohmann::json& object, const char* key);
/// The value that to_number reads back, bit for bit but for the payload of a NaN.
nlohmann::json number_to_json(double value);

/// A piece of JSON for a message, cut to a readable length.
std::string shown(const nlohmann::json& value);

template <typename Array, typename Visit>
void each_item(const Array& array, const char* key, Visit&& visit) {
  std::int64_t index = 0;
  for (const auto& item : array) {
    try {
      visit(item);
    } catch (Error& error) {
      error.add_context(fmt::format("{}[{}]", key, index));
      throw;
    }
    ++index;
  }
}

}  // namespace tessera
