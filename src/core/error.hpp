// Errors and checks. One exception type per cause, each with its exit code; a context chain says
// what was being done (outermost first). Only main() catches: it prints once and returns the code.
#pragma once

#include <fmt/format.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

/// Process exit codes; batch scripts and other programs depend on these numbers.
enum class ExitCode : int {
  ok = 0,
  deck = 2,        // deck or usage
  data = 3,        // data or checkpoint unusable
  memory = 4,      // predicted or real
  comm = 5,        // communication or peer failure
  non_finite = 6,  // beyond the guard's limit
  io = 7,
  internal = 70,
  stopped = 85,  // stopped on request, checkpoint written
};

/// A message with line ends of its own; what it quotes is printable() already.
struct Lines {
  std::string text;
};

class Error : public std::exception {
 public:
  /// Messages quote names, paths and files: all that is not printable() is escaped, line ends too.
  Error(ExitCode code, std::string_view message, std::source_location where);
  Error(ExitCode code, Lines message, std::source_location where)
      : code_(code), message_(std::move(message.text)), where_(where) {}

  ExitCode exit_code() const { return code_; }
  const std::source_location& where() const { return where_; }

  /// Prefixes the message with what was being done: "while reading x: message".
  void add_context(std::string_view context);
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  ExitCode code_;
  std::string message_;
  std::source_location where_;
};

template <ExitCode kCode>
struct ErrorOf : Error {
  explicit ErrorOf(std::string_view message,
                   std::source_location where = std::source_location::current())
      : Error(kCode, message, where) {}
  explicit ErrorOf(Lines message, std::source_location where = std::source_location::current())
      : Error(kCode, std::move(message), where) {}
};

using DeckError = ErrorOf<ExitCode::deck>;      // the user's deck or command line
using DataError = ErrorOf<ExitCode::data>;      // a token file, tokenizer, model or checkpoint
using MemoryError = ErrorOf<ExitCode::memory>;  // does not fit
using CommError = ErrorOf<ExitCode::comm>;      // MPI, NCCL, a dead peer
using NonFiniteError = ErrorOf<ExitCode::non_finite>;
using IoError = ErrorOf<ExitCode::io>;              // the operating system refused
using InternalError = ErrorOf<ExitCode::internal>;  // a bug of Tessera's

/// A GPU, its driver or its libraries refused: as with a dead peer, another node may do. Memory
/// that it lacks is a MemoryError.
struct DeviceError : ErrorOf<ExitCode::comm> {
  using ErrorOf::ErrorOf;
};

/// An error that every rank knows of and throws alike, so that all can leave together.
struct AgreedError : Error {
  using Error::Error;
};

/// "strerror(errno)" without its thread-safety traps, for IoError messages.
std::string errno_text(int error_number);

[[noreturn]] void check_failed(const char* expression, std::string detail,
                               std::source_location where = std::source_location::current());

}  // namespace tessera

/// State invariant, always on: TESSERA_CHECK(n > 0, "n = {}", n).
#define TESSERA_CHECK(condition, ...)                                                \
  do {                                                                               \
    if (!(condition)) ::tessera::check_failed(#condition, fmt::format(__VA_ARGS__)); \
  } while (false)

/// State invariant in debug builds only.
#ifdef NDEBUG
#define TESSERA_DCHECK(condition, ...) \
  do {                                 \
  } while (false)
#else
#define TESSERA_DCHECK(condition, ...) TESSERA_CHECK(condition, __VA_ARGS__)
#endif
