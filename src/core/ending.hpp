// How an exception ends a process: its exit code and last words.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace tessera {

/// What an exit code tells who started the program.
struct ExitCodeRow {
  ExitCode code = ExitCode::ok;
  std::string_view meaning;
};

/// Every exit code, for help and manual.
std::span<const ExitCodeRow> exit_code_rows();

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

/// From here on, memory that runs out in code that no exception may leave (destructors that
/// allocate, as of nlohmann's JSON values; noexcept functions of libstdc++ and other libraries)
/// ends the process with the exit code for memory. Any other reason to terminate aborts, as usual.
/// Once for a process.
void end_where_memory_runs_out();

}  // namespace tessera
