// Where a deck's keys come from: files that include each other, then --set, later over earlier.
#pragma once

#include <map>
#include <span>
#include <string>

#include "deck/problems.hpp"
#include "deck/value.hpp"

namespace tessera::deck {

/// The known keys that the user wrote, each with its last value, and the sections' headers.
struct Sources {
  std::map<std::string, Value, std::less<>> keys;  // by full name
  std::map<std::string, SourceLocation, std::less<>> sections;
};

/// Reads the file at `path` and what it includes. Unknown names become problems.
void add_file(const std::string& path, Sources& sources, Problems& problems);

/// The same for a deck's text; `name` stands for its path.
void add_text(std::string_view text, const std::string& name, Sources& sources, Problems& problems);

/// sets[i] is "section.key=value"; problems call it --set #i+1.
void add_sets(std::span<const std::string> sets, Sources& sources, Problems& problems);

}  // namespace tessera::deck
