// Sizes and numbers for people.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

/// "1.50 GiB", "12.00 MiB" or "0.4 KiB".
std::string human_bytes(std::int64_t bytes);

/// "1.25B", "78.9M", "3.2k" or "812".
std::string human_count(double n);

}  // namespace tessera
