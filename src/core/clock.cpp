#include "core/clock.hpp"

#include <fmt/chrono.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tessera {

std::string duration_text(double seconds) {
  constexpr std::int64_t kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;
  constexpr double kMost = 1e6 * static_cast<double>(kDay);
  const auto s = static_cast<std::int64_t>(std::llround(std::clamp(seconds, 0.0, kMost)));
  if (s < kMinute) return fmt::format("{}s", s);
  if (s < 10 * kMinute) return fmt::format("{}m{:02}s", s / kMinute, s % kMinute);
  if (s < kHour) return fmt::format("{}m", s / kMinute);
  if (s < 10 * kHour) return fmt::format("{}h{:02}m", s / kHour, s % kHour / kMinute);
  if (s < kDay) return fmt::format("{}h", s / kHour);
  if (s < 10 * kDay) return fmt::format("{}d{:02}h", s / kDay, s % kDay / kHour);
  return fmt::format("{}d", s / kDay);
}

std::string utc_text(std::chrono::system_clock::time_point when) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(when)));
}

}  // namespace tessera
