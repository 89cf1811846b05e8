#include "core/clock.hpp"

#include <fmt/chrono.h>

namespace tessera {

std::string utc_text(std::chrono::system_clock::time_point when) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(when)));
}

}  // namespace tessera
