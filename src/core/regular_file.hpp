// The files that users name are regular ones. Opening a FIFO would wait for its other end without
// end, and a device may never come to its own, or do something when it is read.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <string>

namespace tessera {

/// "it is a FIFO, not a regular file", for the type of a file as stat(2) gives it; empty for a
/// regular file.
std::string why_not_regular(mode_t mode);

/// Why open(2) failed with this errno, as far as the path can tell more than errno.
std::string why_not_opened(const std::filesystem::path& path, int error);

/// What a message about a file that is not found adds to its name: " (/home/me/file)" for a
/// relative path, nothing for others.
std::string full_path_text(const std::filesystem::path& path);

struct OpenedFile {
  int descriptor = -1;
  std::string problem;  // why there is no descriptor
};

/// Opens a file as open(2) does, without waiting; closes it again if it is no regular file.
OpenedFile open_regular(const std::filesystem::path& path, int flags);

struct FileText {
  std::string text;
  std::string problem;  // why there is no text
};

/// A whole regular file of at most `most` bytes.
FileText read_regular(const std::filesystem::path& path, std::size_t most);

}  // namespace tessera
