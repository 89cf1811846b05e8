// What people see of the program: text that cannot steer their terminal, and standard streams that
// may be full, closed or gone.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

enum class LineEnds { escaped, kept };

/// The text as a message shows it: control characters and bytes that are no UTF-8 become "\n" or
/// "\x1b". What names, paths and files hold goes through this on its way into a message, so that it
/// can neither forge a line of a log nor steer a terminal. Done twice it changes nothing more.
std::string printable(std::string_view text, LineEnds line_ends = LineEnds::escaped);

/// Gives descriptors 0 to 2 that are closed a file that refuses what the stream is for. Otherwise
/// the next file that is opened gets the number, and what is printed goes into it.
void reserve_standard_streams();

/// Writes to stderr as it is; that nobody can read it there is no reason to fail.
void tell(std::string_view text) noexcept;

/// Writes to stdout past its buffer, for whoever goes on where that fails: 0, or the errno.
int tell_stdout(std::string_view text) noexcept;

/// Writes what is left for stdout and closes it. Throws IoError if anything was lost, be it before.
void close_stdout();

}  // namespace tessera
