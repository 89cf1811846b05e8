// Directories whose files end with their process, and what is left of processes that were killed.
#include "io/scratch_directory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

#include "core/error.hpp"
#include "io/system_calls.hpp"
#include "support/temporary_directory.hpp"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;

std::string host() {
  std::array<char, 256> name{};
  EXPECT_EQ(gethostname(name.data(), name.size() - 1), 0);
  return name.data();
}

/// All that is in a directory, in order.
std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

/// Whether nobody holds the lock of a directory.
bool is_unlocked(const fs::path& directory) {
  const int file = ::open((directory / "lock").c_str(), O_RDWR | O_CLOEXEC);
  EXPECT_GE(file, 0) << directory;
  const bool free = ::flock(file, LOCK_EX | LOCK_NB) == 0;
  ::close(file);
  return free;
}

/// A directory that looks like one whose process has ended.
fs::path abandoned(const fs::path& parent, const std::string& name) {
  fs::create_directory(parent / name);
  write_file(parent / name / "lock", "");
  write_file(parent / name / "state.0", "bytes");
  return parent / name;
}

/// A process that makes a directory, and lives until it is killed.
class Maker {
 public:
  explicit Maker(const fs::path& parent) {
    std::array<int, 2> pipe{};
    EXPECT_EQ(::pipe(pipe.data()), 0);
    process_ = ::fork();
    if (process_ == 0) {
      const io::ScratchDirectory made(parent);
      write_file(made.path() / "state.0", "bytes");
      const std::string path = made.path().string();
      if (::write(pipe[1], path.data(), path.size()) < 0) _exit(1);
      while (true) ::pause();
    }
    std::array<char, 4096> path{};
    const ssize_t size = ::read(pipe[0], path.data(), path.size());
    EXPECT_GT(size, 0);
    path_ = std::string(path.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
    ::close(pipe[0]), ::close(pipe[1]);
  }
  ~Maker() { kill(); }
  Maker(const Maker&) = delete;
  Maker& operator=(const Maker&) = delete;

  void kill() {
    if (process_ <= 0) return;
    ::kill(std::exchange(process_, -1), SIGKILL);
    ::wait(nullptr);
  }
  const fs::path& path() const { return path_; }

 private:
  pid_t process_ = -1;
  fs::path path_;
};

class ScratchDirectory : public testing::Test {
 public:
  ~ScratchDirectory() override { io::set_io_hook({}); }
  TemporaryDirectory parent;
};

TEST_F(ScratchDirectory, IsThereLockedAsLongAsItLives) {
  {
    const io::ScratchDirectory made(parent.path());
    EXPECT_EQ(made.path().parent_path(), parent.path());
    EXPECT_TRUE(made.path().filename().string().starts_with("tessera_" + host() + "_"));
    EXPECT_EQ(names_in(parent.path()), std::vector{made.path().filename().string()});
    EXPECT_FALSE(is_unlocked(made.path()));
    EXPECT_TRUE(made.removed().empty());
    write_file(made.path() / "state.0", "bytes");
  }
  EXPECT_TRUE(names_in(parent.path()).empty());
}

TEST_F(ScratchDirectory, StaysUnderAnotherNameIfItIsToBeKept) {
  std::string name;
  {
    const io::ScratchDirectory made(parent.path(), true);
    name = made.path().filename().string();
    EXPECT_TRUE(name.starts_with("tessera_"));
    write_file(made.path() / "state.0", "bytes");
  }
  EXPECT_EQ(names_in(parent.path()), std::vector{"kept_" + name});
  EXPECT_EQ(read_file(parent.path() / ("kept_" + name) / "state.0"), "bytes");
  const io::ScratchDirectory next(parent.path());
  EXPECT_TRUE(next.removed().empty());
  EXPECT_TRUE(fs::exists(parent.path() / ("kept_" + name) / "state.0"));
}

TEST_F(ScratchDirectory, IsRemovedByTheNextIfItsProcessWasKilled) {
  Maker lives(parent.path()), dies(parent.path());
  EXPECT_EQ(names_in(parent.path()).size(), 2U);
  {
    const io::ScratchDirectory early(parent.path());
    EXPECT_TRUE(early.removed().empty());
  }
  dies.kill();
  {
    const io::ScratchDirectory next(parent.path());
    EXPECT_EQ(next.removed(), std::vector{dies.path()});
  }
  EXPECT_EQ(names_in(parent.path()), std::vector{lives.path().filename().string()});
  EXPECT_EQ(read_file(lives.path() / "state.0"), "bytes");
}

TEST_F(ScratchDirectory, LeavesOthersAlone) {
  const fs::path of_this_host = abandoned(parent.path(), "tessera_" + host() + "_aaaaaa");
  abandoned(parent.path(), "tessera_not" + host() + "_aaaaaa");
  abandoned(parent.path(), "tessera_" + host());
  abandoned(parent.path(), "kept_tessera_" + host() + "_aaaaaa");
  abandoned(parent.path(), "checkpoints");
  write_file(parent.path() / ("tessera_" + host() + "_file"), "bytes");
  auto expected = names_in(parent.path());
  std::erase(expected, of_this_host.filename().string());
  {
    const io::ScratchDirectory made(parent.path());
    EXPECT_EQ(made.removed(), std::vector{of_this_host});
  }
  EXPECT_EQ(names_in(parent.path()), expected);
}

/// Of one that is not locked yet nobody knows whether its maker still lives, but that it is old.
TEST_F(ScratchDirectory, IsGivenTimeToBeLocked) {
  const fs::path young = abandoned(parent.path(), ".tessera_" + host() + "_aaaaaa");
  const fs::path old = abandoned(parent.path(), ".tessera_" + host() + "_bbbbbb");
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(1));
  const io::ScratchDirectory made(parent.path());
  EXPECT_EQ(made.removed(), std::vector{old});
  EXPECT_TRUE(fs::exists(young / "state.0"));
}

TEST_F(ScratchDirectory, DoesNotMakeItsParent) {
  const fs::path missing = parent / "missing";
  const std::string message = message_of<IoError>([&] { io::ScratchDirectory made(missing); });
  EXPECT_NE(message.find(missing.string() + ":"), std::string::npos) << message;
  EXPECT_NE(message.find(errno_text(ENOENT)), std::string::npos) << message;
  EXPECT_FALSE(fs::exists(missing));
}

TEST_F(ScratchDirectory, LeavesNothingWhereItCannotBeMade) {
  for (const IoCall refused : {IoCall::open, IoCall::rename, IoCall::list}) {
    io::set_io_hook([&](IoCall call, const fs::path&, std::size_t) {
      return io::IoVerdict{.error = call == refused ? EIO : 0};
    });
    EXPECT_THROW(io::ScratchDirectory{parent.path()}, IoError);
    io::set_io_hook({});
    EXPECT_TRUE(names_in(parent.path()).empty());
  }
}

/// A process may be killed while it removes files, its own or others': the next one goes on.
TEST_F(ScratchDirectory, LosesItsLockLast) {
  std::vector<std::string> removed;
  io::set_io_witness([&](const io::IoChange& change) {
    if (change.call == IoCall::remove) removed.push_back(change.path.filename().string());
  });
  const fs::path left = abandoned(parent.path(), "tessera_" + host() + "_aaaaaa");
  std::string name;
  {
    const io::ScratchDirectory made(parent.path());
    name = made.path().filename().string();
    write_file(made.path() / "state.0", "bytes");
  }
  io::set_io_witness({});
  EXPECT_EQ(removed, (std::vector<std::string>{"state.0", left.filename(), "state.0", name}));
}

/// Without locks nobody can tell whose process lives.
TEST_F(ScratchDirectory, RemovesNothingWhereThereAreNoLocks) {
  io::set_io_hook([](IoCall call, const fs::path&, std::size_t) {
    return io::IoVerdict{.error = call == IoCall::lock ? ENOLCK : 0};
  });
  const fs::path other = abandoned(parent.path(), "tessera_" + host() + "_aaaaaa");
  const io::ScratchDirectory made(parent.path());
  EXPECT_TRUE(made.removed().empty());
  EXPECT_TRUE(fs::exists(other / "state.0"));
}

TEST_F(ScratchDirectory, OutlivesWhatItWasMovedFrom) {
  std::optional<io::ScratchDirectory> first(parent.path());
  const fs::path path = first->path();
  {
    const io::ScratchDirectory second(*std::move(first));
    first.reset();
    EXPECT_EQ(second.path(), path);
    EXPECT_FALSE(is_unlocked(path));
  }
  EXPECT_TRUE(names_in(parent.path()).empty());
}

/// As the ranks of a node do when a run is started again: all find the same that was left, and each
/// has its own.
TEST_F(ScratchDirectory, IsOneOfMany) {
  for (int round = 0; round < 20; ++round) {
    for (char c = 'a'; c <= 'z'; ++c) abandoned(parent.path(), "tessera_" + host() + "_aaaaa" + c);
    std::array<std::optional<io::ScratchDirectory>, 4> made;
    {
      std::vector<std::jthread> threads;
      for (auto& m : made) threads.emplace_back([&] { EXPECT_NO_THROW(m.emplace(parent.path())); });
    }
    std::vector<std::string> expected;
    for (const auto& m : made) {
      ASSERT_TRUE(m);
      expected.push_back(m->path().filename().string());
      EXPECT_FALSE(is_unlocked(m->path()));
    }
    std::ranges::sort(expected);
    EXPECT_EQ(std::ranges::adjacent_find(expected), expected.end());
    EXPECT_EQ(names_in(parent.path()), expected);
  }
}

}  // namespace
}  // namespace tessera::test
