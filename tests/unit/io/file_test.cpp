#include "io/file.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "core/error.hpp"
#include "support/temporary_directory.hpp"

namespace tessera {
namespace {

using test::message_of;
using test::TemporaryDirectory;
namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string read_string(const io::File& file, std::int64_t offset, std::size_t count) {
  std::string out(count, '?');
  file.read(offset, std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(File, ReadsBackWhatWasWritten) {
  const TemporaryDirectory dir;
  io::File file(dir / "f", io::OpenMode::create);
  file.write(0, bytes_of("hello world"));
  file.write(6, bytes_of("there"));
  file.sync();
  EXPECT_EQ(file.size(), 11);
  EXPECT_EQ(read_string(file, 0, 11), "hello there");
  file.close();
  io::File again(dir / "f", io::OpenMode::update);
  again.write(0, bytes_of("J"));
  EXPECT_EQ(read_string(again, 0, 5), "Jello");
}

TEST(File, NamesTheFileAndThePlaceWhenItEndsEarly) {
  const TemporaryDirectory dir;
  test::write_file(dir / "short", "12345");
  const io::File file(dir / "short", io::OpenMode::read);
  const auto message = message_of<DataError>([&] { read_string(file, 2, 8); });
  EXPECT_NE(message.find("short"), std::string::npos) << message;
  EXPECT_NE(message.find("ends at byte 5"), std::string::npos) << message;
}

TEST(File, MissingFilesAndDirectoriesAreDataErrors) {
  const TemporaryDirectory dir;
  message_of<DataError>([&] { io::File(dir / "none", io::OpenMode::read); });
  message_of<DataError>([&] { io::File(dir.path(), io::OpenMode::read); });
}

TEST(File, RefusalsOfTheSystemAreIoErrors) {  // trap 59
  const TemporaryDirectory dir;
  test::write_file(dir / "f", "");
  io::File file(dir / "f", io::OpenMode::read);
  const auto message = message_of<IoError>([&] { file.write(0, bytes_of("x")); });
  EXPECT_NE(message.find("f: cannot write: Bad file descriptor"), std::string::npos) << message;
  // What is to be made is no data that the user lacks.
  message_of<IoError>([&] { io::File(dir / "no_directory" / "f", io::OpenMode::create); });
  message_of<IoError>([&] { io::rename_path(dir / "none", dir / "g"); });
  message_of<IoError>([&] { io::sync_directory(dir / "no_directory"); });
}

TEST(File, IsARegularFile) {
  const TemporaryDirectory dir;
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  for (const auto mode : {io::OpenMode::read, io::OpenMode::create, io::OpenMode::update}) {
    const auto message = message_of<DataError>([&] { io::File(dir / "fifo", mode); });
    EXPECT_NE(message.find("fifo: cannot open: it is a FIFO, not a regular file"),
              std::string::npos)
        << message;
    message_of<DataError>([&] { io::File("/dev/zero", mode); });
  }
}

// Trap 55: one call moves at most 0x7ffff000 bytes. The 2 GiB buffer repeats the same 64 MiB of
// memory, which is enough to see that the last bytes of the file arrive last.
TEST(File, MovesMoreThanTwoGibibytesAndPastTheFourthGibibyte) {
  const TemporaryDirectory dir;
  const std::size_t piece = std::size_t{64} << 20, pieces = 33, total = piece * pieces;
  const int memory = ::memfd_create("repeated", MFD_CLOEXEC);
  ASSERT_GE(memory, 0);
  ASSERT_EQ(::ftruncate(memory, static_cast<off_t>(piece)), 0);
  auto* base = static_cast<std::byte*>(
      ::mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ASSERT_NE(base, MAP_FAILED);
  for (std::size_t i = 0; i < pieces; ++i) {
    ASSERT_NE(
        ::mmap(base + i * piece, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, 0),
        MAP_FAILED);
  }
  const std::int64_t start = std::int64_t{5} << 30;
  io::File file(dir / "sparse", io::OpenMode::create);
  const std::string tail = "the end";
  file.write(start + static_cast<std::int64_t>(total - tail.size()), bytes_of(tail));
  file.read(start, {base, total});
  EXPECT_EQ(std::string(reinterpret_cast<char*>(base + total - tail.size()), tail.size()), tail);
  EXPECT_EQ(base[0], std::byte{0});
  ::munmap(base, total);
  ::close(memory);
}

TEST(AtomicFile, AppearsOnlyWhenPublished) {
  const TemporaryDirectory dir;
  const std::string big(3 << 20, 'b');
  {
    io::AtomicFile file(dir / "out");
    file.append("a");
    file.append(big);
    file.append_value(std::uint16_t{0x6463});  // "cd"
    EXPECT_EQ(file.position(), static_cast<std::int64_t>(big.size()) + 3);
    EXPECT_FALSE(fs::exists(dir / "out"));
    file.publish();
  }
  EXPECT_EQ(test::read_file(dir / "out"), "a" + big + "cd");
  EXPECT_FALSE(fs::exists(dir / "out.tmp"));
}

TEST(AtomicFile, LeavesNothingBehindWhenAbandoned) {
  const TemporaryDirectory dir;
  test::write_file(dir / "out", "old");
  { io::AtomicFile(dir / "out").append("new"); }
  EXPECT_EQ(test::read_file(dir / "out"), "old");
  EXPECT_FALSE(fs::exists(dir / "out.tmp"));
}

TEST(ReadText, RefusesFilesThatAreTooLarge) {
  const TemporaryDirectory dir;
  test::write_file(dir / "t", "12345");
  EXPECT_EQ(io::read_text(dir / "t", 5), "12345");
  message_of<DataError>([&] { io::read_text(dir / "t", 4); });
}

}  // namespace
}  // namespace tessera
