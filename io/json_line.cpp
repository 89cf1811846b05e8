#include "io/json_line.hpp"

#include <simdjson.h>

#include <algorithm>
#include <vector>

namespace tessera::io {
namespace {

constexpr std::size_t kLongestLine = std::size_t{1} << 30;
constexpr int kDeepestLine = 256;  // as of a JsonDocument

/// Whether no object within a value gives a name twice, and values are not within each other too
/// deeply, which a JsonDocument refuses.
bool is_plain(simdjson::dom::element value, int depth = 1) {
  simdjson::dom::object object;
  simdjson::dom::array array;
  if (value.get(object) == simdjson::SUCCESS) {
    std::vector<std::string_view> names;
    for (const auto [name, member] : object) {
      if (!is_plain(member, depth + 1)) return false;
      names.push_back(name);
    }
    std::ranges::sort(names);
    return depth <= kDeepestLine && std::ranges::adjacent_find(names) == names.end();
  }
  if (value.get(array) != simdjson::SUCCESS) return true;
  for (const auto item : array)
    if (!is_plain(item, depth + 1)) return false;
  return depth <= kDeepestLine;
}

}  // namespace

struct JsonLineReader::Parser {
  simdjson::dom::parser parser{kLongestLine};
};

JsonLineReader::JsonLineReader() : parser_(std::make_unique<Parser>()) {}
JsonLineReader::~JsonLineReader() = default;

std::optional<std::string_view> JsonLineReader::text(std::string_view line,
                                                     std::string_view field) {
  simdjson::dom::element root;
  if (parser_->parser.parse(line.data(), line.size()).get(root) != simdjson::SUCCESS ||
      !root.is_object() || !is_plain(root)) {
    return std::nullopt;
  }
  std::string_view text;
  if (root[field].get(text) != simdjson::SUCCESS) return std::nullopt;
  return text;
}

}  // namespace tessera::io
