// How long something took, by the clock that never jumps.
#pragma once

#include <chrono>

namespace tessera {

using SteadyClock = std::chrono::steady_clock;

inline double seconds_since(SteadyClock::time_point begin) {
  return std::chrono::duration<double>(SteadyClock::now() - begin).count();
}

}  // namespace tessera
