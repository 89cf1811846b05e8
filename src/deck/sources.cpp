#include "deck/sources.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "core/regular_file.hpp"
#include "deck/codec.hpp"
#include "deck/names.hpp"
#include "deck/schema.hpp"
#include "deck/toml_text.hpp"

namespace tessera::deck {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargestDeck = std::size_t{1} << 20;
constexpr std::size_t kMostFiles = 64;  // bounds includes that multiply

void add_unknown_key(const SourceLocation& place, std::string_view section, std::string_view key,
                     Problems& problems) {
  const std::string name =
      section.empty() ? key_text(key) : fmt::format("{}.{}", section, key_text(key));
  problems.add(place, name, fmt::format("unknown key {}{}", name, key_hint(section, key)));
}

void add_section(const std::string& section, const Table& table, Sources& sources,
                 Problems& problems) {
  for (const TableMember& member : table) {
    const std::string name = fmt::format("{}.{}", section, member.key);
    if (is_section(name)) {
      if (const Table* inner = member.value.as<Table>()) {
        sources.sections[name] = member.key_place;
        add_section(name, *inner, sources, problems);
      } else {
        problems.add(member.key_place, name, fmt::format("{} must be a section [{}]", name, name));
      }
    } else if (find_row(name) && member.key.find('.') == std::string::npos) {
      sources.keys[name] = member.value;
    } else {
      add_unknown_key(member.key_place, section, member.key, problems);
    }
  }
}

/// The sections of one file, `include` aside.
void add_sections(const Table& table, Sources& sources, Problems& problems) {
  for (const TableMember& member : table) {
    if (member.key == "include") continue;
    const Table* inner = member.value.as<Table>();
    const bool known = is_section(member.key) && member.key.find('.') == std::string::npos;
    if (known && inner) {
      sources.sections[member.key] = member.key_place;
      add_section(member.key, *inner, sources, problems);
    } else if (known) {
      problems.add(member.key_place, member.key,
                   fmt::format("{} must be a section [{}]", member.key, member.key));
    } else if (inner) {
      problems.add(
          member.key_place, member.key,
          fmt::format("unknown section [{}]{}", key_text(member.key), section_hint(member.key)));
    } else {
      add_unknown_key(member.key_place, "", member.key, problems);
    }
  }
}

/// Reads files depth first, so that a file's own keys override those that it includes.
class FileReader {
 public:
  FileReader(Sources& sources, Problems& problems) : sources_(sources), problems_(problems) {}

  /// `written`: what an including file calls it.
  void add(const std::string& path, const std::string& written, const SourceLocation& asked_at) {
    std::error_code error;
    const std::string identity = fs::weakly_canonical(path, error).string();
    for (const std::string& open : open_) {
      if (open == identity) {
        problems_.add(asked_at, kUnreadable, fmt::format("{} includes itself", path));
        return;
      }
    }
    if (++files_ > kMostFiles) {
      if (files_ == kMostFiles + 1) {
        problems_.add(asked_at, kUnreadable,
                      fmt::format("more than {} files included", kMostFiles));
      }
      return;
    }
    const std::optional<std::string> text = read(path, written, asked_at);
    if (!text) return;
    open_.push_back(identity);
    add_text(*text, path);
    open_.pop_back();
  }

  void add_text(std::string_view text, const std::string& path) {
    const Table table = parse_toml(text, path, problems_);
    for (const TableMember& member : table) {
      if (member.key == "include") add_includes(member, path);
    }
    add_sections(table, sources_, problems_);
  }

 private:
  void add_includes(const TableMember& include, const std::string& path) {
    const auto files = Codec<std::vector<std::string>>::read(include.value);
    if (!files) {
      problems_.add(include.value.place, kUnreadable,
                    fmt::format("include = {} must be a list of files, like [\"base.toml\"]",
                                value_excerpt(include.value)));
      return;
    }
    for (const std::string& file : *files) {
      add((fs::path(path).parent_path() / file).string(), file, include.value.place);
    }
  }

  /// What to say of an included file, as its deck writes it, that is not found but lies elsewhere.
  static std::string in_current_directory(const std::string& path, const std::string& written) {
    std::error_code hidden;
    if (written.empty() || fs::exists(path, hidden) || !fs::exists(written, hidden)) return "";
    return fmt::format(
        "; include is relative to the including file, and there is {} in the current directory",
        written);
  }

  std::optional<std::string> read(const std::string& path, const std::string& written,
                                  const SourceLocation& asked_at) {
    FileText file = read_regular(path, kLargestDeck);
    if (file.problem.empty()) return std::move(file.text);
    problems_.add(asked_at, kUnreadable,
                  fmt::format("cannot read {}: {}{}{}", path, file.problem, full_path_text(path),
                              in_current_directory(path, written)));
    return std::nullopt;
  }

  Sources& sources_;
  Problems& problems_;
  std::vector<std::string> open_;  // the chain of includes being read
  std::size_t files_ = 0;
};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

void add_set(std::string_view text, const SourceLocation& place, Sources& sources,
             Problems& problems) {
  const std::size_t equals = text.find('=');
  const std::string name(trimmed(text.substr(0, equals)));
  if (equals == std::string_view::npos || name.empty()) {
    problems.add(
        place, "",
        fmt::format("{} must be section.key=value", value_excerpt({std::string(text), {}})));
    return;
  }
  if (const SchemaRow* row = find_row(name)) {
    const std::string_view given = trimmed(text.substr(equals + 1));
    if (given.empty()) {
      problems.add(place, name,
                   fmt::format("{}= gives no value: it must be {}; without this --set it is what "
                               "the deck says, or the default",
                               name, row->allowed()));
      return;
    }
    Value value = parse_set_value(given, place, name, problems);
    if (!value.unset()) sources.keys[name] = std::move(value);
    return;
  }
  const std::size_t dot = name.rfind('.');
  const std::string section = dot == std::string::npos ? "" : name.substr(0, dot);
  if (section.empty() || is_section(section)) {
    add_unknown_key(place, section, dot == std::string::npos ? name : name.substr(dot + 1),
                    problems);
  } else {
    problems.add(place, name,
                 fmt::format("unknown section [{}]{}", key_text(section), section_hint(section)));
  }
}

}  // namespace

void add_file(const std::string& path, Sources& sources, Problems& problems) {
  FileReader(sources, problems).add(path, "", SourceLocation{path, 0, 0});
}

void add_text(std::string_view text, const std::string& name, Sources& sources,
              Problems& problems) {
  FileReader(sources, problems).add_text(text, name);
}

void add_sets(std::span<const std::string> sets, Sources& sources, Problems& problems) {
  int number = 0;
  for (const std::string& set : sets)
    add_set(set, SourceLocation{"--set", ++number, 0}, sources, problems);
}

}  // namespace tessera::deck
