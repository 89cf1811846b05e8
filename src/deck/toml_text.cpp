#include "deck/toml_text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace {
/// An assertion of the TOML library that the text broke.
struct BrokenText {};
[[noreturn]] void throw_broken_text() { throw BrokenText{}; }
}  // namespace

// Some malformed texts ("[=") break assertions of the library, which without NDEBUG abort and with
// it become undefined behaviour: here they throw, in every build.
#undef NDEBUG
#define TOML_ASSERT(condition) ((condition) ? void() : throw_broken_text())
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

namespace tessera::deck {

namespace {

std::string one_line(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

/// The position after the string that begins at `at`.
std::size_t after_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const std::string triple(3, quote);
  const bool multi_line = text.substr(at, 3) == triple;
  const std::string_view closing = multi_line ? std::string_view(triple) : text.substr(at, 1);
  for (at += closing.size(); at < text.size(); ++at) {
    if (text[at] == '\\' && quote == '"') {
      ++at;
    } else if (text.substr(at, closing.size()) == closing) {
      return at + closing.size();
    } else if (text[at] == '\n' && !multi_line) {
      return at;
    }
  }
  return text.size();
}

/// Each dot of a dotted key nests a table, and the parser recurses over those without a limit of
/// its own. No deck needs nearly as many dots outside of strings and comments.
bool too_many_dots(std::string_view text) {
  constexpr int kMost = 1000;
  int dots = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '"' || text[at] == '\'') {
      at = after_string(text, at);
    } else if (text[at] == '#') {
      at = std::min(text.find('\n', at), text.size());
    } else {
      dots += text[at++] == '.' ? 1 : 0;
    }
  }
  return dots > kMost;
}

constexpr std::string_view kMalformed = "malformed TOML: a key, a value or a bracket is missing";
constexpr std::string_view kTooManyDots = "too many dotted keys for a deck";

struct Converter {
  const std::string& file;

  SourceLocation place(const toml::source_region& source) const {
    return {file, static_cast<int>(source.begin.line), static_cast<int>(source.begin.column)};
  }

  Value value(const toml::node& node) const {
    Value out;
    out.place = place(node.source());
    if (const auto* text = node.as_string()) {
      out.data = text->get();
    } else if (const auto* integer = node.as_integer()) {
      out.data = integer->get();
    } else if (const auto* number = node.as_floating_point()) {
      out.data = number->get();
    } else if (const auto* truth = node.as_boolean()) {
      out.data = truth->get();
    } else if (const auto* list = node.as_array()) {
      out.data = items(*list);
    } else if (const auto* members = node.as_table()) {
      out.data = table(*members);
    } else {
      out.data = Date{};
    }
    return out;
  }

  List items(const toml::array& array) const {
    List out;
    for (const toml::node& node : array) out.push_back(value(node));
    return out;
  }

  Table table(const toml::table& members) const {
    Table out;
    for (const auto& [key, node] : members) {
      out.push_back({std::string(key.str()), place(key.source()), value(node)});
    }
    return out;
  }
};

/// The line at which BrokenText comes: the parser reads forwards, so the texts that end before it
/// are not broken and all longer ones are.
int broken_line(std::string_view text) {
  std::vector<std::size_t> ends;  // of the lines
  for (std::size_t end = text.find('\n'); end != std::string_view::npos;
       end = text.find('\n', end + 1)) {
    ends.push_back(end + 1);
  }
  const auto whole = [&](std::size_t end) {
    try {
      static_cast<void>(toml::parse(text.substr(0, end)));
    } catch (const toml::parse_error&) {
    } catch (const BrokenText&) {
      return false;
    }
    return true;
  };
  return static_cast<int>(std::partition_point(ends.begin(), ends.end(), whole) - ends.begin()) + 1;
}

void replace_places(Value& value, const SourceLocation& place) {
  value.place = place;
  if (auto* list = std::get_if<List>(&value.data)) {
    for (Value& item : *list) replace_places(item, place);
  }
}

/// toml++ reads numbers with streams, which hide that memory has run out: such a number looks
/// malformed. So what looks malformed is read again, and is malformed if it fails twice.
toml::table parsed_twice(std::string_view text) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error&) {
    return toml::parse(text);
  }
}

bool looks_like_word(std::string_view text) {
  constexpr std::string_view kOpeners = "[{\"'";
  return !text.empty() && kOpeners.find(text[0]) == std::string_view::npos &&
         one_line(text) == text;
}

}  // namespace

Table parse_toml(std::string_view text, const std::string& file, Problems& problems) {
  const Converter convert{file};
  if (too_many_dots(text)) {
    problems.add({file, 1, 1}, kUnreadable, std::string(kTooManyDots));
    return {};
  }
  try {
    return convert.table(parsed_twice(text));
  } catch (const toml::parse_error& error) {
    problems.add(convert.place(error.source()), kUnreadable, one_line(error.description()));
  } catch (const BrokenText&) {
    problems.add({file, broken_line(text), 1}, kUnreadable, std::string(kMalformed));
  }
  return {};
}

Value parse_set_value(std::string_view text, const SourceLocation& place, std::string_view key,
                      Problems& problems) {
  if (too_many_dots(text)) {
    problems.add(place, key, fmt::format("{}: {}", key, kTooManyDots));
    return {{}, place};
  }
  try {
    const toml::table parsed = parsed_twice(fmt::format("value = {}", text));
    const toml::node* node = parsed.size() == 1 ? parsed.get("value") : nullptr;
    if (node) {
      Value value = Converter{place.file}.value(*node);
      replace_places(value, place);
      return value;
    }
    problems.add(place, key, fmt::format("{} takes one TOML value", key));
  } catch (const toml::parse_error& error) {
    if (looks_like_word(text)) return {std::string(text), place};
    problems.add(place, key, fmt::format("{}: {}", key, one_line(error.description())));
  } catch (const BrokenText&) {
    problems.add(place, key, fmt::format("{}: {}", key, kMalformed));
  }
  return {{}, place};
}

}  // namespace tessera::deck
