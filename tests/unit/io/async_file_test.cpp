// Bytes that go to disks and come back beside the caller: the right ones, whatever the disk does,
// or an error that names the file.
#include "io/async_file.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>

#include "core/error.hpp"
#include "core/math.hpp"
#include "io/file.hpp"
#include "io/system_calls.hpp"
#include "support/temporary_directory.hpp"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kBlock = 4 * io::kSector;

/// Random bytes in memory that begins at a sector.
class Sectors {
 public:
  explicit Sectors(std::int64_t bytes, unsigned seed = 1)
      : memory_(static_cast<std::byte*>(
            std::aligned_alloc(io::kSector, round_up(bytes + 1, io::kSector)))),
        bytes_(bytes) {
    fill({0, bytes}, seed);
  }
  ~Sectors() { std::free(memory_); }
  Sectors(const Sectors&) = delete;
  Sectors& operator=(const Sectors&) = delete;

  void fill(Range range, unsigned seed) {
    std::minstd_rand numbers(seed);
    for (std::byte& b : part(range)) b = static_cast<std::byte>(numbers() >> 8);
  }
  std::span<std::byte> part(Range range) {
    return {memory_ + range.begin, static_cast<std::size_t>(range.count())};
  }
  std::span<std::byte> all() { return part({0, bytes_}); }

 private:
  std::byte* memory_;
  std::int64_t bytes_;
};

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

class Files {
 public:
  explicit Files(std::int64_t bytes, int count = 1) {
    options = {.files = {}, .bytes = bytes, .block = kBlock, .depth = 3};
    for (int i = 0; i < count; ++i) options.files.push_back(directory / std::to_string(i));
  }
  ~Files() { io::set_io_hook({}); }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  TemporaryDirectory directory;
  io::AsyncFileOptions options;
};

class AsyncFile : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Striped, AsyncFile, testing::Values(1, 2, 3));

/// In pieces of random lengths, whole units: some are written, the others read. All are under way
/// at once unless they share sectors.
void move_pieces(io::AsyncFile& file, Sectors& model, std::int64_t unit, std::mt19937& random) {
  Sectors other(file.bytes());
  std::deque<io::Transfer> under_way;
  std::vector<Range> read;
  for (Range r{0, 0}; r.end < file.bytes(); r.begin = r.end) {
    const auto units = std::uniform_int_distribution<std::int64_t>(1, 3 * kBlock / unit)(random);
    r.end = std::min(file.bytes(), r.begin + unit * units);
    if (random() % 2 == 0) {
      model.fill(r, static_cast<unsigned>(random()));
      under_way.push_back(file.write(r.begin, model.part(r)));
    } else {
      under_way.push_back(file.read(r.begin, other.part(r)));
      read.push_back(r);
    }
    if (unit < io::kSector) under_way.back().wait();
  }
  for (const io::Transfer& transfer : under_way) transfer.wait();
  for (const Range r : read) ASSERT_TRUE(same(other.part(r), model.part(r))) << r.begin;
}

TEST_P(AsyncFile, HoldsTheBytes) {
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{1}, io::kSector, kBlock,
                                   5 * kBlock + 777, 23 * kBlock + io::kSector}) {
    const Files files(bytes, GetParam());
    io::AsyncFile file(files.options);
    Sectors model(bytes), back(bytes);
    file.write(0, model.all()).wait();
    std::mt19937 random(static_cast<unsigned>(bytes));
    for (int round = 0; round < 20; ++round)
      move_pieces(file, model, round % 2 == 0 ? io::kSector : 1, random);
    file.read(0, back.all()).wait();
    EXPECT_TRUE(same(back.all(), model.all())) << bytes;
  }
}

/// Memory and file are both aligned, but not to each other.
TEST(AsyncFile, TakesMemoryThatIsNotAlignedAsTheFileIs) {
  const Files files(4 * kBlock);
  io::AsyncFile file(files.options);
  Sectors from(4 * kBlock), to(4 * kBlock, 2);
  const Range there{100, 100 + 3 * kBlock};
  file.write(0, from.part(there)).wait();
  file.read(0, to.part({1, 1 + 3 * kBlock})).wait();
  EXPECT_TRUE(same(to.part({1, 1 + 3 * kBlock}), from.part(there)));
}

TEST(AsyncFile, ReservesItsRoom) {
  const Files files(5 * kBlock + 1, 2);
  const io::AsyncFile file(files.options);
  std::int64_t sizes = 0;
  for (const fs::path& path : files.options.files)
    sizes += static_cast<std::int64_t>(fs::file_size(path));
  EXPECT_EQ(sizes, 5 * kBlock + io::kSector);
}

TEST(AsyncFile, SaysWhenTheDiskHasTooLittleRoom) {
  const Files files(std::int64_t{1} << 60);
  const std::string message = message_of<IoError>([&] { const io::AsyncFile file(files.options); });
  EXPECT_NE(message.find(files.options.files[0].string()), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(std::int64_t{1} << 60)), std::string::npos) << message;
}

/// Where a file system cannot promise room, what is free decides.
TEST(AsyncFile, NeedsNoReservationWhereThereIsNone) {
  io::set_io_hook([](IoCall call, const fs::path&, std::size_t) {
    return io::IoVerdict{.error = call == IoCall::allocate ? EOPNOTSUPP : 0};
  });
  const Files files(2 * kBlock);
  io::AsyncFile file(files.options);
  Sectors model(2 * kBlock), back(2 * kBlock, 2);
  file.write(0, model.all()).wait();
  file.read(0, back.all()).wait();
  EXPECT_TRUE(same(back.all(), model.all()));
  const Files huge(std::int64_t{1} << 60);
  const std::string message = message_of<IoError>([&] { const io::AsyncFile no(huge.options); });
  EXPECT_NE(message.find("free"), std::string::npos) << message;
}

TEST(AsyncFile, GoesThroughThePageCacheWhereNothingElseIsThere) {
  std::atomic<int> opened = 0;
  io::set_io_hook([&](IoCall call, const fs::path&, std::size_t) {
    return io::IoVerdict{.error = call == IoCall::open && opened++ == 1 ? EINVAL : 0};
  });
  const Files files(3 * kBlock + 5);
  io::AsyncFile file(files.options);
  EXPECT_EQ(file.buffered(), files.options.files);
  Sectors model(3 * kBlock + 5), back(3 * kBlock + 5, 2);
  file.write(0, model.all()).wait();
  file.read(0, back.all()).wait();
  EXPECT_TRUE(same(back.all(), model.all()));
}

TEST(AsyncFile, SaysWhatToRaiseWhereTheSystemHasNoQueue) {
  io::set_io_hook([](IoCall call, const fs::path&, std::size_t) {
    return io::IoVerdict{.error = call == IoCall::queue ? EAGAIN : 0};
  });
  const Files files(kBlock);
  const std::string message = message_of<IoError>([&] { const io::AsyncFile file(files.options); });
  EXPECT_NE(message.find("aio-max-nr"), std::string::npos) << message;
}

/// Writes and reads everything with the first, second, ... request harmed, until there is no such
/// request, and calls check(error) each time; the error is "" if there was none.
template <typename Check>
void harm_every_request(int stripes, io::IoVerdict harm, Check&& check) {
  const Files files(7 * kBlock + 100, stripes);
  io::AsyncFile file(files.options);
  bool harmed = true;
  for (int n = 0; harmed; ++n) {
    ASSERT_LT(n, 100);
    SCOPED_TRACE(n);
    std::atomic<int> calls = 0;
    std::atomic<bool> met = false;
    io::set_io_hook([&](IoCall call, const fs::path&, std::size_t) {
      const bool moves = call == IoCall::read || call == IoCall::write;
      if (!moves || calls++ != n) return io::IoVerdict{};
      met = true;
      return harm;
    });
    Sectors model(file.bytes(), static_cast<unsigned>(n)), back(file.bytes(), 1000);
    std::string error;
    try {
      file.write(0, model.all()).wait();
      file.read(0, back.all()).wait();
      EXPECT_TRUE(same(back.all(), model.all()));
    } catch (const IoError& e) {
      error = e.what();
    }
    io::set_io_hook({});
    harmed = met;
    if (harmed) check(error, files.directory.path().string());
  }
}

TEST_P(AsyncFile, EndsInAnErrorWhicheverRequestFails) {
  for (const int error : {EIO, ENOSPC}) {
    harm_every_request(
        GetParam(), {.error = error},
        [&](const std::string& message, const std::string& directory) {
          for (const std::string& word : {errno_text(error), directory, std::string("bytes")})
            EXPECT_NE(message.find(word), std::string::npos) << message;
        });
  }
}

TEST_P(AsyncFile, GoesOnAfterWhatTheSystemDoesNotTakeAtOnce) {
  for (const io::IoVerdict& harm :
       {io::IoVerdict{.error = EAGAIN}, io::IoVerdict{.at_most = kBlock / 2},
        io::IoVerdict{.at_most = 1}, io::IoVerdict{.delay = std::chrono::milliseconds(5)}}) {
    harm_every_request(GetParam(), harm, [](const std::string& message, const std::string&) {
      EXPECT_EQ(message, "");
    });
  }
}

TEST(AsyncFile, DoesNotTryForEver) {
  const Files files(kBlock);
  io::AsyncFile file(files.options);
  io::set_io_hook([&](IoCall call, const fs::path&, std::size_t) {
    return io::IoVerdict{.error = call == IoCall::write ? EAGAIN : 0};
  });
  Sectors model(kBlock);
  const std::string message = message_of<IoError>([&] { file.write(0, model.all()).wait(); });
  EXPECT_NE(message.find(errno_text(EAGAIN)), std::string::npos) << message;
}

TEST(AsyncFile, SaysThatAnotherProgramHasCutTheFile) {
  const Files files(4 * kBlock);
  io::AsyncFile file(files.options);
  Sectors model(4 * kBlock);
  file.write(0, model.all()).wait();
  fs::resize_file(files.options.files[0], kBlock);
  file.read(0, model.part({0, kBlock})).wait();
  const std::string message = message_of<IoError>([&] { file.read(0, model.all()).wait(); });
  EXPECT_NE(message.find("cut"), std::string::npos) << message;
  EXPECT_NE(message.find(files.options.files[0].string()), std::string::npos) << message;
}

/// A write behind the end would make the file as long as before, with zeros in it.
TEST(AsyncFile, DoesNotMendAFileThatWasCut) {
  for (const std::int64_t begin : {std::int64_t{0}, 3 * kBlock, 3 * kBlock + 1}) {
    const Files files(4 * kBlock);
    io::AsyncFile file(files.options);
    Sectors model(4 * kBlock);
    file.write(0, model.all()).wait();
    fs::resize_file(files.options.files[0], 0);
    const std::string message = message_of<IoError>([&] {
      file.write(begin, model.part({begin, 4 * kBlock})).wait();
    });
    EXPECT_NE(message.find("cut"), std::string::npos) << message;
    EXPECT_EQ(fs::file_size(files.options.files[0]), 0U);
  }
}

/// Of a failed transfer nothing is left that moves; the next one is as good as any.
TEST(AsyncFile, IsUsableAfterAnError) {
  const Files files(8 * kBlock, 2);
  io::AsyncFile file(files.options);
  std::atomic<int> calls = 0;
  io::set_io_hook([&](IoCall call, const fs::path&, std::size_t) {
    return io::IoVerdict{.error = call == IoCall::write && calls++ == 2 ? EIO : 0};
  });
  Sectors model(8 * kBlock), back(8 * kBlock, 2);
  EXPECT_THROW(file.write(0, model.all()).wait(), IoError);
  { const io::Transfer unwanted = file.write(0, model.all()); }
  model.fill({0, 8 * kBlock}, 3);
  file.write(0, model.all()).wait();
  file.read(0, back.all()).wait();
  EXPECT_TRUE(same(back.all(), model.all()));
}

/// On the thread of the file, whether the request is for the disk or for the page cache: whoever
/// waits learns of it, and so does whoever comes after.
TEST(AsyncFile, TellsOfMemoryThatRunsOut) {
  for (const std::int64_t bytes : {8 * kBlock, kBlock - 100}) {
    for (int n = 0; n < 4; ++n) {
      const Files files(bytes, 2);
      io::AsyncFile file(files.options);
      std::atomic<int> calls = 0;
      io::set_io_hook([&](IoCall call, const fs::path&, std::size_t) {
        if (call == IoCall::write && calls++ == n % 2) throw std::bad_alloc();
        return io::IoVerdict{};
      });
      Sectors model(bytes);
      const Range part{n < 2 ? 0 : 100, bytes};
      EXPECT_THROW(file.write(part.begin, model.part(part)).wait(), MemoryError);
      EXPECT_THROW(file.write(0, model.all()).wait(), MemoryError);
      { const io::Transfer unwanted = file.write(0, model.all()); }
    }
  }
}

TEST(AsyncFile, CountsTheBytes) {
  const Files files(3 * kBlock);
  io::AsyncFile file(files.options);
  Sectors model(3 * kBlock);
  const io::IoBytes before = io::io_bytes();
  file.write(0, model.all()).wait();
  file.read(kBlock, model.part({0, kBlock})).wait();
  const io::IoBytes after = io::io_bytes();
  EXPECT_EQ(after.written - before.written, 3 * kBlock);
  EXPECT_EQ(after.read - before.read, kBlock);
}

}  // namespace
}  // namespace tessera::test
