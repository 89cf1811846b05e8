#include "core/error.hpp"

#include <system_error>

#include "core/terminal.hpp"

namespace tessera {

Error::Error(ExitCode code, std::string_view message, std::source_location where)
    : code_(code), message_(printable(message)), where_(where) {}

void Error::add_context(std::string_view context) {
  message_ = fmt::format("{}: {}", printable(context), message_);
}

std::string errno_text(int error_number) { return std::generic_category().message(error_number); }

void check_failed(const char* expression, std::string detail, std::source_location where) {
  throw InternalError(
      fmt::format("check failed: {}{}{}", expression, detail.empty() ? "" : ": ", detail), where);
}

}  // namespace tessera
