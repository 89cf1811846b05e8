// What an exception makes of a process: its exit code and last words.
#pragma once

#include <string>

#include "core/error.hpp"

namespace tessera {

struct Ending {
  ExitCode code = ExitCode::ok;
  std::string message;
};

/// Of the exception that is being handled.
Ending current_ending();

}  // namespace tessera
