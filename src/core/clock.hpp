// How long something took, by the clock that never jumps; and times for people.
#pragma once

#include <chrono>
#include <string>

namespace tessera {

using SteadyClock = std::chrono::steady_clock;

inline double seconds_since(SteadyClock::time_point begin) {
  return std::chrono::duration<double>(SteadyClock::now() - begin).count();
}

/// "37s", "9m58s", "12m", "1h37m", "13h", "3d07h" or "12d".
std::string duration_text(double seconds);

/// A moment as "2026-03-01 04:05:06Z"; without one, now.
std::string utc_text(std::chrono::system_clock::time_point when = std::chrono::system_clock::now());

}  // namespace tessera
