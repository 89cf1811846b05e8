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

constexpr ExitCodeRow kExitCodeRows[] = {
    {ExitCode::ok, "done"},
    {ExitCode::deck, "deck or usage"},
    {ExitCode::data, "data or checkpoint unusable"},
    {ExitCode::memory, "out of memory, predicted or real"},
    {ExitCode::comm, "communication or peer failure"},
    {ExitCode::non_finite, "non-finite steps or loss spikes beyond the guard's limit"},
    {ExitCode::io,
     "I/O; also where what a command other than train prints cannot be written (a reader that "
     "leaves, as head does, ends it by SIGPIPE)"},
    {ExitCode::internal, "internal error: please report it"},
    {ExitCode::stopped, "stopped on request with a checkpoint written"}};

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

/// Of this thread. Code that GCC makes of a noexcept function may terminate without an exception
/// that is being handled: then this alone tells why.
thread_local bool memory_was_refused = false;

[[noreturn]] void refuse_memory() {
  memory_was_refused = true;
  throw std::bad_alloc();
}

Ending ending_of_termination() noexcept {
  if (std::current_exception()) return current_ending();
  try {
    throw std::bad_alloc();
  } catch (const std::bad_alloc&) {
    return current_ending();
  }
}

[[noreturn]] void terminate() noexcept {
  if (!std::current_exception() && !memory_was_refused) std::abort();
  const Ending ending = ending_of_termination();
  if (ending.code != ExitCode::memory) std::abort();
  tell("tessera: ");
  tell(ending.message);
  tell("\n");
  ::_exit(static_cast<int>(ending.code));
}

}  // namespace

std::string Ending::text() const {
  if (code != ExitCode::internal) return message;
  return fmt::format("{}\n  (a bug of tessera's, at {}:{}; please report it with the deck)",
                     message, where.file_name(), where.line());
}

std::span<const ExitCodeRow> exit_code_rows() { return kExitCodeRows; }

Ending current_ending() noexcept {
  Ending ending;
  try {
    describe(ending);
  } catch (const std::bad_alloc&) {
    ending.message = "out of memory";  // short enough to need none
  }
  return ending;
}

void end_where_memory_runs_out() {
  std::set_new_handler(refuse_memory);
  std::set_terminate(terminate);
}

}  // namespace tessera
