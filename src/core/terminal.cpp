#include "core/terminal.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "core/error.hpp"

namespace tessera {
namespace {

unsigned char byte_at(std::string_view text, std::size_t at) {
  return at < text.size() ? static_cast<unsigned char>(text[at]) : 0;
}

/// Bytes of the UTF-8 character at `at`; 0 if there is none.
std::size_t character_at(std::string_view text, std::size_t at) {
  const unsigned lead = byte_at(text, at);
  const std::size_t bytes = lead < 0x80                   ? 1
                            : lead >= 0xc2 && lead < 0xe0 ? 2
                            : lead >= 0xe0 && lead < 0xf0 ? 3
                            : lead >= 0xf0 && lead < 0xf5 ? 4
                                                          : 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte_at(text, at + i) & 0xc0U) != 0x80) return 0;
  }
  return bytes;
}

/// U+0000 to U+001F, U+007F, and U+0080 to U+009F, which are two bytes.
bool is_control(std::string_view character) {
  const unsigned lead = byte_at(character, 0);
  return lead < 0x20 || lead == 0x7f || (lead == 0xc2 && byte_at(character, 1) < 0xa0);
}

/// Ends a line or a paragraph (U+2028, U+2029), or turns the direction of what follows, so that a
/// terminal shows it in another order than it is in (U+061C, U+200E, U+200F, U+202A to U+202E,
/// U+2066 to U+2069).
bool reorders(std::string_view character) {
  if (character == "\xd8\x9c" || character == "\xe2\x80\x8e" || character == "\xe2\x80\x8f")
    return true;
  const auto within = [&](std::string_view first, std::string_view last) {
    return character.size() == first.size() && character >= first && character <= last;
  };
  return within("\xe2\x80\xa8", "\xe2\x80\xae") || within("\xe2\x81\xa6", "\xe2\x81\xa9");
}

std::string escaped(std::string_view bytes) {
  if (bytes == "\n") return "\\n";
  if (bytes == "\r") return "\\r";
  if (bytes == "\t") return "\\t";
  std::string text;
  for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return text;
}

/// 0, or the errno.
int write_all(int descriptor, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t n = ::write(descriptor, text.data(), text.size());
    if (n < 0 && errno != EINTR) return errno;
    if (n > 0) text.remove_prefix(static_cast<std::size_t>(n));
  }
  return 0;
}

}  // namespace

std::string printable(std::string_view text, LineEnds line_ends) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = character_at(text, at);
    const std::string_view character = text.substr(at, bytes == 0 ? 1 : bytes);
    const bool kept = character == "\n" && line_ends == LineEnds::kept;
    if (!kept && (bytes == 0 || is_control(character) || reorders(character))) {
      out += escaped(character);
    } else {
      out += character;
    }
    at += character.size();
  }
  return out;
}

std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-";
  if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) return std::string(text);
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

void reserve_standard_streams() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) != -1) continue;
    // The lowest free number is this one, for all below are taken.
    if (::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
  }
}

bool stderr_is_shown() {
  if (::isatty(STDERR_FILENO) != 0) return true;
  struct stat info = {};
  if (::fstat(STDERR_FILENO, &info) != 0 || !(S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode)))
    return false;
  const std::string parent = fmt::format("/proc/{}", ::getppid());
  std::string name;
  std::getline(std::ifstream(parent + "/comm"), name);
  if (!name.starts_with("mpirun") && !name.starts_with("mpiexec")) return false;
  const int passed_on = ::open((parent + "/fd/2").c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
  if (passed_on < 0) return false;
  const bool terminal = ::isatty(passed_on) != 0;
  ::close(passed_on);
  return terminal;
}

void tell(std::string_view text) noexcept { write_all(STDERR_FILENO, text); }

int tell_stdout(std::string_view text) noexcept { return write_all(STDOUT_FILENO, text); }

void close_stdout() {
  const bool lost = std::ferror(stdout) != 0;
  errno = 0;
  const bool closed = std::fclose(stdout) == 0;
  if (!lost && closed) return;
  throw IoError(errno != 0 ? fmt::format("cannot write to stdout: {}", errno_text(errno))
                           : "cannot write all that belongs to stdout");
}

}  // namespace tessera
