#include "core/error.hpp"

#include <system_error>

namespace tessera {

std::string errno_text(int error_number) { return std::generic_category().message(error_number); }

void check_failed(const char* expression, std::string detail, std::source_location where) {
  throw InternalError(
      fmt::format("check failed: {}{}{}", expression, detail.empty() ? "" : ": ", detail), where);
}

}  // namespace tessera
