#include "core/bytes.hpp"

#include <fmt/format.h>

namespace tessera {

std::string human_bytes(std::int64_t bytes) {
  const auto b = static_cast<double>(bytes);
  if (b >= 0x1p30) return fmt::format("{:.2f} GiB", b / 0x1p30);
  if (b >= 0x1p20) return fmt::format("{:.2f} MiB", b / 0x1p20);
  return fmt::format("{:.1f} KiB", b / 0x1p10);
}

}  // namespace tessera
