// Patterns of names, as in shells: * stands for any number of characters, ? for one.
#pragma once

#include <string_view>

namespace tessera {

constexpr bool matches_pattern(std::string_view pattern, std::string_view name) {
  constexpr auto kNone = std::string_view::npos;
  std::size_t at = 0, star = kNone, behind = 0;  // the last * and what of the name follows it
  for (std::size_t i = 0; i < name.size();) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++, behind = i;
    } else if (at < pattern.size() && (pattern[at] == '?' || pattern[at] == name[i])) {
      ++at, ++i;
    } else if (star != kNone) {
      at = star + 1, i = ++behind;  // it stands for one more
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', at) == kNone;
}

}  // namespace tessera
