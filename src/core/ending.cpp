#include "core/ending.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>

#include "core/limits.hpp"
#include "core/terminal.hpp"

namespace tessera {
namespace {

bool is_exhaustion(const std::error_code& code) {
  return code == std::errc::not_enough_memory || code == std::errc::resource_unavailable_try_again;
}

/// For a std::system_error, which the file system, fmt (for a stream) or std::thread may have
/// thrown.
void describe(Ending& ending, const std::system_error& e) {
  const bool of_stdout = std::ferror(stdout) != 0;  // also where a pipe has no room just now
  ending.code = is_exhaustion(e.code()) && !of_stdout ? ExitCode::memory : ExitCode::io;
  if (ending.code == ExitCode::memory) {
    ending.message = fmt::format("{}; {}", printable(e.what()), why_no_memory());
  } else {
    ending.message =
        of_stdout ? "cannot write to stdout: " + e.code().message() : printable(e.what());
  }
}

/// Sets the exit code first: building the message may need memory that there is not.
void describe(Ending& ending) {
  try {
    throw;
  } catch (const Error& e) {
    ending.code = e.exit_code();
    ending.where = e.where();
    ending.message = e.what();
  } catch (const std::bad_alloc&) {
    ending.code = ExitCode::memory;
    ending.message = fmt::format("out of memory: {}", why_no_memory());
  } catch (const std::system_error& e) {
    describe(ending, e);
  } catch (const std::exception& e) {
    ending.code = ExitCode::internal;
    ending.message = printable(e.what());
  }
}

}  // namespace

std::string Ending::text() const {
  if (code != ExitCode::internal) return message;
  return fmt::format("{}\n  (a bug of tessera's, at {}:{}; please report it with the deck)",
                     message, where.file_name(), where.line());
}

Ending current_ending() noexcept {
  Ending ending;
  try {
    describe(ending);
  } catch (const std::bad_alloc&) {
    ending.message = "out of memory";  // short enough to need none
  }
  return ending;
}

void terminate_for_memory() noexcept {
  if (!std::current_exception()) std::abort();
  const Ending ending = current_ending();
  if (ending.code != ExitCode::memory) std::abort();
  tell("tessera: ");
  tell(ending.message);
  tell("\n");
  ::_exit(static_cast<int>(ending.code));
}

}  // namespace tessera
