// Bytes on disks behind addresses at which there is nothing.
#include "memory/disk_tier.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/error.hpp"
#include "core/math.hpp"
#include "memory/arena.hpp"
#include "support/temporary_directory.hpp"

namespace tessera::memory {
namespace {

namespace fs = std::filesystem;
using test::TemporaryDirectory;
constexpr std::int64_t kBlock = io::kSector, kBytes = 9 * kBlock + 700;

std::vector<std::byte> random_bytes(std::int64_t n, unsigned seed) {
  std::minstd_rand numbers(seed);
  std::vector<std::byte> bytes(static_cast<std::size_t>(n));
  for (std::byte& b : bytes) b = static_cast<std::byte>(numbers() >> 8);
  return bytes;
}

void run(streams::Task& task) {
  while (task.advance() != streams::Progress::done) {
  }
}

/// The files below some directories.
std::vector<fs::path> files_in(std::initializer_list<const TemporaryDirectory*> directories) {
  std::vector<fs::path> files;
  for (const TemporaryDirectory* directory : directories) {
    for (const auto& entry : fs::recursive_directory_iterator(directory->path())) {
      if (entry.is_regular_file() && entry.path().filename() != "lock")
        files.push_back(entry.path());
    }
  }
  return files;
}

class DiskTier : public testing::Test {
 public:
  TemporaryDirectory one, other;
  DiskTierOptions options() const {
    return {.directories = {one.path(), other.path()}, .block = kBlock, .depth = 3};
  }
};

TEST_F(DiskTier, HoldsWhatIsWrittenAnywhere) {
  memory::DiskTier tier(options());
  const Arena arena("a", tier, kBytes);
  std::vector<std::byte> all(kBytes, std::byte{1}), copy;
  tier.read(arena.base(), all);
  EXPECT_EQ(std::ranges::count(all, std::byte{0}), kBytes) << "it is not zero";
  auto model = random_bytes(kBytes, 1);
  tier.write(arena.base(), model);
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    const auto offset = static_cast<std::int64_t>(random() % kBytes),
               most = std::min<std::int64_t>(kBytes - offset, round % 2 == 0 ? 100 : 3 * kBlock),
               size = static_cast<std::int64_t>(random()) % (most + 1);
    const auto part =
        std::span(model).subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(size));
    if (random() % 2 == 0) {
      std::ranges::copy(random_bytes(size, static_cast<unsigned>(round)), part.begin());
      tier.write(arena.base() + offset, part);
    } else {
      std::vector<std::byte> back(part.size());
      tier.read(arena.base() + offset, back);
      ASSERT_TRUE(std::ranges::equal(back, part)) << size << " bytes at " << offset;
    }
  }
  tier.read(arena.base(), all);
  EXPECT_EQ(all, model);
  EXPECT_TRUE(std::ranges::equal(tier.host_bytes(arena.base() + 17, 5000, copy),
                                 std::span(model).subspan(17, 5000)));
}

TEST_F(DiskTier, CopiesToAndFromTheHost) {
  memory::DiskTier tier(options());
  const Arena arena("a", tier, kBytes);
  for (const std::int64_t offset : {std::int64_t{0}, kBlock, std::int64_t{100}}) {
    for (const std::int64_t size :
         {std::int64_t{0}, std::int64_t{5}, 4 * kBlock, kBytes - kBlock}) {
      SCOPED_TRACE(testing::Message() << size << " bytes at " << offset);
      auto from = random_bytes(size, static_cast<unsigned>(offset + size));
      std::vector<std::byte> to(from.size());
      run(*tier.start_copy(from.data(), arena.base() + offset, size));
      run(*tier.start_copy(arena.base() + offset, to.data(), size));
      EXPECT_EQ(to, from);
    }
  }
}

/// Copies go on beside each other, and one that nobody wants any more ends with its task.
TEST_F(DiskTier, HasSeveralCopiesUnderWay) {
  memory::DiskTier tier(options());
  const Arena arena("a", tier, 8 * kBlock);
  std::vector<std::vector<std::byte>> from, to;
  for (unsigned i = 0; i < 8; ++i) from.push_back(random_bytes(kBlock, i));
  to.resize(8, std::vector<std::byte>(kBlock));
  for (const bool out : {true, false}) {
    std::vector<std::unique_ptr<streams::Task>> tasks;
    for (std::size_t i = 0; i < 8; ++i) {
      std::byte* there = arena.base() + static_cast<std::int64_t>(i) * kBlock;
      tasks.push_back(out ? tier.start_copy(from[i].data(), there, kBlock)
                          : tier.start_copy(there, to[i].data(), kBlock));
    }
    while (!tasks.empty()) run(*tasks.back()), tasks.pop_back();
  }
  EXPECT_EQ(to, from);
  (void)tier.start_copy(arena.base(), to[0].data(), kBlock);
  tier.read(arena.base(), to[0]);
  EXPECT_EQ(to[0], from[0]);
}

TEST_F(DiskTier, RefusesCopiesThatAreNotBetweenDisksAndMemory) {
  memory::DiskTier tier(options());
  const Arena arena("a", tier, 2 * kBlock);
  std::vector<std::byte> host(2 * kBlock);
  EXPECT_THROW((void)tier.start_copy(arena.base(), arena.base() + kBlock, kBlock), InternalError);
  EXPECT_THROW((void)tier.start_copy(host.data(), host.data() + kBlock, kBlock), InternalError);
  EXPECT_THROW(tier.read(arena.base() + 2 * kBlock, host), InternalError);
  EXPECT_THROW(tier.write(host.data(), host), InternalError);
  EXPECT_THROW(tier.read(arena.base() + kBlock, host), InternalError);  // past its end
}

TEST_F(DiskTier, IsWhereNobodyLooks) {
  memory::DiskTier tier(options());
  const Arena arena("a", tier, 2 * kBlock);
  EXPECT_FALSE(tier.of_host());
  EXPECT_EQ(tier.in_place(arena.base()), nullptr);
  // Of SIGSEGV, or of what a sanitizer makes of it.
  EXPECT_DEATH((void)*const_cast<volatile std::byte*>(arena.base()), "");
  EXPECT_DEATH(*const_cast<volatile std::byte*>(arena.base() + 2 * kBlock - 1) = std::byte{1}, "");
}

TEST_F(DiskTier, KeepsAllocationsApart) {
  memory::DiskTier tier(options());
  std::vector<std::unique_ptr<Arena>> arenas;
  std::vector<std::vector<std::byte>> models;
  for (unsigned i = 0; i < 5; ++i) {
    arenas.push_back(std::make_unique<Arena>("a", tier, kBytes + i));
    models.push_back(random_bytes(kBytes + i, i));
    tier.write(arenas.back()->base(), models.back());
  }
  arenas.erase(arenas.begin() + 1), models.erase(models.begin() + 1);
  for (std::size_t i = 0; i < arenas.size(); ++i) {
    std::vector<std::byte> back(models[i].size());
    tier.read(arenas[i]->base(), back);
    EXPECT_EQ(back, models[i]) << i;
  }
}

TEST_F(DiskTier, HasAFileInEachDirectoryAsLongAsItLives) {
  {
    memory::DiskTier tier(options());
    std::byte* base = tier.allocate(kBytes);
    EXPECT_EQ(files_in({&one}).size(), 1U);
    EXPECT_EQ(files_in({&other}).size(), 1U);
    std::uintmax_t bytes = 0;
    for (const fs::path& file : files_in({&one, &other})) bytes += fs::file_size(file);
    EXPECT_EQ(bytes, static_cast<std::uintmax_t>(round_up(kBytes, io::kSector)));
    tier.write(base, random_bytes(kBytes, 1));
  }
  EXPECT_TRUE(fs::is_empty(one.path()));
  EXPECT_TRUE(fs::is_empty(other.path()));
}

TEST_F(DiskTier, LeavesItsFilesIfTheyAreToBeKept) {
  DiskTierOptions keep = options();
  keep.keep = true, keep.directories = {one.path()};
  const auto bytes = random_bytes(kBytes, 1);
  {
    memory::DiskTier tier(keep);
    tier.write(tier.allocate(kBytes), bytes);
  }
  const auto files = files_in({&one});
  ASSERT_EQ(files.size(), 1U);
  const std::string kept = test::read_file(files[0]).substr(0, bytes.size());
  EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(kept)), bytes));
}

/// One disk may be named twice, to have twice the share of a slower one.
TEST_F(DiskTier, MayHaveADirectoryTwice) {
  DiskTierOptions twice = options();
  twice.directories = {one.path(), one.path(), other.path()};
  const auto bytes = random_bytes(kBytes, 1);
  std::vector<std::byte> back(bytes.size());
  memory::DiskTier tier(twice);
  const Arena arena("a", tier, kBytes);
  EXPECT_EQ(files_in({&one}).size(), 2U);
  tier.write(arena.base(), bytes);
  tier.read(arena.base(), back);
  EXPECT_EQ(back, bytes);
}

TEST_F(DiskTier, SaysWhichDiskHasTooLittleRoom) {
  memory::DiskTier tier(options());
  const std::string message =
      test::message_of<IoError>([&] { tier.allocate(std::int64_t{1} << 60); });
  EXPECT_NE(message.find(one.path().string() + "/tessera_"), std::string::npos) << message;
  EXPECT_TRUE(files_in({&other}).empty());
  const Arena small("a", tier, kBytes);  // there still is room for this
  const auto bytes = random_bytes(kBytes, 1);
  tier.write(small.base(), bytes);
}

TEST_F(DiskTier, NeedsItsDirectories) {
  DiskTierOptions missing = options();
  missing.directories[1] = other / "missing";
  const std::string message = test::message_of<IoError>([&] { memory::DiskTier tier(missing); });
  EXPECT_NE(message.find((other / "missing").string()), std::string::npos) << message;
  EXPECT_TRUE(fs::is_empty(one.path()));
}

TEST_F(DiskTier, FailsWhereTheFileWasCut) {
  memory::DiskTier tier(options());
  const Arena arena("a", tier, kBytes);
  const auto files = files_in({&one});
  ASSERT_EQ(files.size(), 1U);
  fs::resize_file(files[0], 0);
  std::vector<std::byte> back(kBytes);
  const auto task = tier.start_copy(arena.base(), back.data(), kBytes);
  const std::string message = test::message_of<IoError>([&] { run(*task); });
  EXPECT_NE(message.find(files[0].string()), std::string::npos) << message;
}

}  // namespace
}  // namespace tessera::memory
