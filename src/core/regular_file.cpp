#include "core/regular_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>

#include "core/error.hpp"

namespace tessera {

std::string why_not_regular(mode_t mode) {
  const auto is = [](const char* kind) {
    return fmt::format("it is {}, not a regular file", kind);
  };
  switch (mode & S_IFMT) {
    case S_IFREG: return "";
    case S_IFDIR: return is("a directory");
    case S_IFIFO: return is("a FIFO");
    case S_IFSOCK: return is("a socket");
    case S_IFCHR: return is("a character device");
    case S_IFBLK: return is("a block device");
    default: return "it is not a regular file";
  }
}

std::string why_not_opened(const std::filesystem::path& path, int error) {
  struct stat status {};
  // Of sockets, devices without a driver, and FIFOs that nobody reads.
  if (error == ENXIO && ::stat(path.c_str(), &status) == 0) return why_not_regular(status.st_mode);
  return errno_text(error);
}

std::string full_path_text(const std::filesystem::path& path) {
  if (path.is_absolute()) return "";
  std::error_code gone;  // the current directory
  const auto full = std::filesystem::absolute(path, gone);
  return gone ? "" : fmt::format(" ({})", full.lexically_normal().string());
}

OpenedFile open_regular(const std::filesystem::path& path, int flags) {
  OpenedFile opened;
  do {
    opened.descriptor = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0666);
  } while (opened.descriptor < 0 && errno == EINTR);
  if (opened.descriptor < 0) {
    if (errno == ENOMEM) throw std::bad_alloc();
    opened.problem = why_not_opened(path, errno);
    return opened;
  }
  struct stat status {};
  opened.problem = ::fstat(opened.descriptor, &status) == 0 ? why_not_regular(status.st_mode)
                                                            : errno_text(errno);
  if (!opened.problem.empty()) ::close(std::exchange(opened.descriptor, -1));
  return opened;
}

FileText read_regular(const std::filesystem::path& path, std::size_t most) {
  const OpenedFile opened = open_regular(path, O_RDONLY);
  if (opened.descriptor < 0) return {.text = "", .problem = opened.problem};
  FileText file{.text = std::string(most + 1, '\0'), .problem = ""};
  std::size_t done = 0;
  ssize_t n = 0;
  do {
    n = ::read(opened.descriptor, file.text.data() + done, file.text.size() - done);
    if (n > 0) done += static_cast<std::size_t>(n);
  } while (n > 0 || (n < 0 && errno == EINTR));
  if (n < 0) file.problem = errno_text(errno);
  if (done > most) file.problem = fmt::format("it is larger than {} bytes", most);
  ::close(opened.descriptor);
  file.text.resize(done);
  return file;
}

}  // namespace tessera
