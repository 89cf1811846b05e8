#include "core/regular_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "support/temporary_directory.hpp"

namespace tessera {
namespace {

using test::TemporaryDirectory;

/// Binds a socket of the local domain to the path; it stays when its descriptor is closed.
void make_socket(const std::filesystem::path& path) {
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  ASSERT_LT(path.string().size(), sizeof address.sun_path);
  std::strcpy(address.sun_path, path.c_str());
  ASSERT_EQ(::bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::close(descriptor);
}

TEST(RegularFile, OpensAndReadsOne) {
  const TemporaryDirectory directory;
  test::write_file(directory / "f", "12345");
  const OpenedFile opened = open_regular(directory / "f", O_RDONLY);
  EXPECT_GE(opened.descriptor, 0);
  EXPECT_EQ(opened.problem, "");
  ::close(opened.descriptor);
  EXPECT_EQ(read_regular(directory / "f", 5).text, "12345");
  EXPECT_EQ(read_regular(directory / "f", 5).problem, "");
  EXPECT_EQ(read_regular(directory / "f", 4).problem, "it is larger than 4 bytes");
  EXPECT_EQ(read_regular(directory / "none", 4).problem, "No such file or directory");
}

TEST(RegularFile, NamesTheKindOfWhatIsNone) {
  const TemporaryDirectory directory;
  ASSERT_EQ(::mkfifo((directory / "fifo").c_str(), 0600), 0);
  make_socket(directory / "socket");
  for (const auto& [path, kind] : {std::pair{directory / "fifo", "a FIFO"},
                                   {directory / "socket", "a socket"},
                                   {directory.path(), "a directory"},
                                   {std::filesystem::path("/dev/zero"), "a character device"}}) {
    for (const int flags : {O_RDONLY, O_WRONLY}) {  // a FIFO would be waited for in two ways
      const std::string problem = open_regular(path, flags).problem;
      if (flags == O_WRONLY && path == directory.path()) continue;  // "Is a directory"
      EXPECT_EQ(problem, fmt::format("it is {}, not a regular file", kind));
    }
  }
}

}  // namespace
}  // namespace tessera
