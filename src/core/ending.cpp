#include "core/ending.hpp"

#include <cstdio>
#include <new>
#include <system_error>

#include "core/terminal.hpp"

namespace tessera {

std::string Ending::text() const {
  if (code != ExitCode::internal) return message;
  return fmt::format("{}\n  (a bug of tessera's, at {}:{}; please report it with the deck)",
                     message, where.file_name(), where.line());
}

Ending current_ending() {
  try {
    throw;
  } catch (const Error& e) {
    return {e.exit_code(), e.what(), e.where()};
  } catch (const std::bad_alloc&) {
    return {ExitCode::memory, "out of memory"};
  } catch (const std::system_error& e) {  // of std::filesystem, or of fmt for a stream
    const bool of_stdout = std::ferror(stdout) != 0;
    return {ExitCode::io,
            of_stdout ? "cannot write to stdout: " + e.code().message() : printable(e.what())};
  } catch (const std::exception& e) {
    return {ExitCode::internal, printable(e.what())};
  }
}

}  // namespace tessera
