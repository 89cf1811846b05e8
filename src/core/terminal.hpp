// The terminal: text that cannot steer it, and standard streams that may be full, closed or gone.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

enum class LineEnds { escaped, kept };

/// The text as a message shows it: control characters, those that change the order in which text is
/// shown, and bytes that are no UTF-8 become "\n" or "\x1b". What names, paths and files hold goes
/// through this on its way into a message, so that it can neither forge a line of a log nor steer a
/// terminal. Done twice it changes nothing more.
std::string printable(std::string_view text, LineEnds line_ends = LineEnds::escaped);

/// The text as one word of a line that is pasted into a shell: quoted, unless it has nothing that
/// means something there.
std::string shell_word(std::string_view text);

/// Opens descriptors 0 to 2 where they are closed, on a file that refuses to be used. Otherwise the
/// next file that is opened would get such a number, and what is printed would be written into it.
void reserve_standard_streams();

/// Writes to stderr as it is. That nobody can read it there is no reason to fail.
void tell(std::string_view text) noexcept;

/// Whether what is written to stderr appears on a terminal: on one of this process, or on that of
/// the mpirun or mpiexec above it, which passes on what its processes write into pipes.
bool stderr_is_shown();

/// Writes to stdout without its buffer, for callers that go on when that fails. Returns 0, or the
/// errno.
int tell_stdout(std::string_view text) noexcept;

/// Writes what is left in stdout's buffer and closes it. Throws IoError if anything was lost, now
/// or earlier.
void close_stdout();

}  // namespace tessera
