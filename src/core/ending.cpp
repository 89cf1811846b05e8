#include "core/ending.hpp"

#include <new>

namespace tessera {

Ending current_ending() {
  try {
    throw;
  } catch (const Error& e) {
    if (e.exit_code() != ExitCode::internal) return {e.exit_code(), e.what()};
    return {e.exit_code(),
            fmt::format("{}\n  (a bug of tessera's, at {}:{}; please report it with the deck)",
                        e.what(), e.where().file_name(), e.where().line())};
  } catch (const std::bad_alloc&) {
    return {ExitCode::memory, "out of memory"};
  } catch (const std::exception& e) {
    return {ExitCode::internal, e.what()};
  }
}

}  // namespace tessera
