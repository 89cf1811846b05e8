// What an exception makes of a process: its exit code and last words.
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

/// Of the exception that is being handled. What the system refused for want of memory or threads
/// ends as a MemoryError does; where there is no memory for a message, it is cut short.
Ending current_ending() noexcept;

/// For std::set_terminate: ends a process that memory has run out of where no exception may pass,
/// as in destructors of libraries that allocate (nlohmann's JSON values do), with that exit code.
/// Any other reason to terminate aborts, as ever.
[[noreturn]] void terminate_for_memory() noexcept;

}  // namespace tessera
