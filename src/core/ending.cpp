#include "core/ending.hpp"

#include <new>
#include <system_error>

#include "core/limits.hpp"

namespace tessera {
namespace {

bool is_exhaustion(const std::error_code& code) {
  return code == std::errc::not_enough_memory || code == std::errc::resource_unavailable_try_again;
}

/// Says first which code it is: the words may need memory that there is not.
void describe(Ending& ending) {
  try {
    throw;
  } catch (const Error& e) {
    ending.code = e.exit_code();
    ending.message = e.what();
    if (e.exit_code() != ExitCode::internal) return;
    ending.message =
        fmt::format("{}\n  (a bug of tessera's, at {}:{}; please report it with the deck)",
                    e.what(), e.where().file_name(), e.where().line());
  } catch (const std::bad_alloc&) {
    ending.code = ExitCode::memory;
    ending.message = fmt::format("out of memory: {}", why_no_memory());
  } catch (const std::system_error& e) {
    const bool exhausted = is_exhaustion(e.code());
    ending.code = exhausted ? ExitCode::memory : ExitCode::internal;
    ending.message = exhausted ? fmt::format("{}; {}", e.what(), why_no_memory()) : e.what();
  } catch (const std::exception& e) {
    ending.code = ExitCode::internal;
    ending.message = e.what();
  }
}

}  // namespace

Ending current_ending() noexcept {
  Ending ending;
  try {
    describe(ending);
  } catch (const std::bad_alloc&) {
    ending.message = "out of memory";  // short enough to need none
  }
  return ending;
}

}  // namespace tessera
