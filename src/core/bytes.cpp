#include "core/bytes.hpp"

#include <fmt/format.h>

#include <cmath>
#include <span>

namespace tessera {

namespace {

struct SizeUnit {
  double size;
  int decimals;
  const char* name;
};

/// In the largest unit of which it is one when rounded: "1.0M" is shown, not "1000.0k". `units` are
/// the largest first, and the last one takes what is left.
std::string in_units(double n, std::span<const SizeUnit> units) {
  for (const SizeUnit& unit : units.first(units.size() - 1)) {
    // Half of what the last decimal of the next smaller unit means is rounded up to the unit.
    const SizeUnit& smaller = (&unit)[1];
    const double half = 0.5 * smaller.size * std::pow(10, -smaller.decimals);
    if (n >= unit.size - half)
      return fmt::format("{:.{}f}{}", n / unit.size, unit.decimals, unit.name);
  }
  const SizeUnit& last = units.back();
  return fmt::format("{:.{}f}{}", n / last.size, last.decimals, last.name);
}

}  // namespace

std::string human_bytes(std::int64_t bytes) {
  constexpr SizeUnit kUnits[] = {{0x1p30, 2, " GiB"}, {0x1p20, 2, " MiB"}, {0x1p10, 1, " KiB"}};
  return in_units(static_cast<double>(bytes), kUnits);
}

std::string human_count(double n) {
  constexpr SizeUnit kUnits[] = {{1e9, 2, "B"}, {1e6, 1, "M"}, {1e3, 1, "k"}, {1, 0, ""}};
  return in_units(n, kUnits);
}

std::string count_text(std::int64_t n, std::string_view noun, std::string_view several) {
  if (n == 1) return fmt::format("1 {}", noun);
  return several.empty() ? fmt::format("{} {}s", n, noun) : fmt::format("{} {}", n, several);
}

}  // namespace tessera
