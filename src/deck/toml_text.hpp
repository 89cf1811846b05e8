// TOML text -> Table. The only place that knows the TOML library.
#pragma once

#include <string_view>

#include "deck/problems.hpp"
#include "deck/value.hpp"

namespace tessera::deck {

/// The text's top-level table; places name `file`. A syntax error becomes a problem, and the
/// table is empty.
Table parse_toml(std::string_view text, const std::string& file, Problems& problems);

/// The value of one --set: a TOML value, or else a bare word, which is a string.
Value parse_set_value(std::string_view text, const SourceLocation& place, std::string_view key,
                      Problems& problems);

}  // namespace tessera::deck
