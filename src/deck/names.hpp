// What somebody who wrote an unknown name probably meant: by spelling, or because another training
// system calls it so.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tessera::deck {

/// The closest candidate by edit distance, or empty when none is close.
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> candidates);

/// The end of a message about an unknown key or section: " (did you mean zero.stage?)".
/// `section` is empty for a key outside of any section.
std::string key_hint(std::string_view section, std::string_view key);
std::string section_hint(std::string_view section);

}  // namespace tessera::deck
