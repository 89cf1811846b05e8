// Sizes and numbers for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

/// "1.50 GiB", "12.00 MiB" or "0.4 KiB".
std::string human_bytes(std::int64_t bytes);

/// "1.25B", "78.9M", "3.2k" or "812".
std::string human_count(double n);

/// "1 rank", "0 ranks" or "2 ranks"; `several` is the noun's plural where that is not an "s" more.
std::string count_text(std::int64_t n, std::string_view noun, std::string_view several = "");

}  // namespace tessera
