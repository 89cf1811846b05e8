// How an exception ends a process: its exit code and last words.
#pragma once

#include <string>

#include "core/error.hpp"

namespace tessera {

struct Ending {
  ExitCode code = ExitCode::ok;
  std::string message;
  std::source_location where = {};  // of an internal error

  /// The message, and of a bug where it is.
  std::string text() const;
};

/// For the exception that is being handled. Memory or threads that the system refused end as a
/// MemoryError does. Where there is no memory for a message, it is cut short.
Ending current_ending() noexcept;

/// For std::set_terminate. Where memory runs out in code that no exception may leave (such as
/// destructors that allocate; nlohmann's JSON values do), ends the process with the exit code for
/// memory. Any other reason to terminate aborts, as usual.
[[noreturn]] void terminate_for_memory() noexcept;

}  // namespace tessera
