// Replacing in text.
#pragma once

#include <string>
#include <string_view>

namespace tessera::io {

/// The text with each `what`, which is not empty, replaced by `with`, from left to right.
inline std::string replace_all(std::string_view text, std::string_view what,
                               std::string_view with) {
  std::string out;
  for (std::size_t at = 0; (at = text.find(what)) != std::string_view::npos;) {
    out.append(text.substr(0, at)).append(with);
    text.remove_prefix(at + what.size());
  }
  return out.append(text);
}

}  // namespace tessera::io
