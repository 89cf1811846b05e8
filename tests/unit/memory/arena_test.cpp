#include "memory/arena.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "core/error.hpp"

namespace tessera::memory {
namespace {

TEST(Arena, IsZeroedAndResident) {
  constexpr std::int64_t kBytes = (24 << 20) + 5;
  const std::int64_t before = resident_bytes();
  HostTier tier;
  const Arena arena("state", tier, kBytes);
  EXPECT_EQ(arena.bytes(), kBytes);
  EXPECT_EQ(arena.name(), "state");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.base()) % 4096, 0U);
  EXPECT_GE(resident_bytes() - before, kBytes - (1 << 20)) << "pages were not touched";
  EXPECT_TRUE(std::all_of(arena.base(), arena.base() + kBytes,
                          [](std::byte b) { return b == std::byte{}; }));
}

TEST(Arena, GivesMemoryBack) {
  const std::int64_t before = resident_bytes();
  HostTier tier;
  for (int i = 0; i < 8; ++i) const Arena arena("step", tier, 32 << 20);
  EXPECT_LT(resident_bytes() - before, 40 << 20);
}

TEST(Arena, MayBeEmpty) {
  HostTier tier;
  const Arena arena("none", tier, 0);
  EXPECT_EQ(arena.base(), nullptr);
}

// Limits: a tree of files as the kernel shows them. Numbers are bytes, but for meminfo's KiB.
class Machine {
 public:
  explicit Machine(std::int64_t available) {
    std::string name = (std::filesystem::temp_directory_path() / "tessera_XXXXXX").string();
    root_ = mkdtemp(name.data());
    write("proc/meminfo",
          fmt::format("MemTotal: 999999999 kB\nMemAvailable: {} kB\n", available / 1024));
  }
  ~Machine() { std::filesystem::remove_all(root_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void group2(const std::string& path, const std::string& limit, std::int64_t used,
              std::int64_t cache) const {
    const std::string group = "sys/fs/cgroup" + path;
    write(group + "/memory.max", limit + "\n");
    write(group + "/memory.current", std::to_string(used));
    write(group + "/memory.stat", fmt::format("anon 7\ninactive_file {}\n", cache));
  }
  void group1(const std::string& path, std::int64_t limit, std::int64_t used,
              std::int64_t cache) const {
    const std::string group = "sys/fs/cgroup/memory" + path;
    write(group + "/memory.limit_in_bytes", std::to_string(limit));
    write(group + "/memory.usage_in_bytes", std::to_string(used));
    write(group + "/memory.stat", fmt::format("inactive_file 5\ntotal_inactive_file {}\n", cache));
  }
  const std::filesystem::path& root() const { return root_; }
  std::int64_t available() const { return available_bytes(root_); }

 private:
  std::filesystem::path root_;
};

TEST(Available, IsTheNodesWithoutLimits) {
  const Machine machine(8 << 20);
  EXPECT_EQ(machine.available(), 8 << 20);
  machine.write("proc/self/cgroup", "0::/\n");
  EXPECT_EQ(machine.available(), 8 << 20);
}

// Slurm limits the job and leaves its steps without a limit of their own, or the other way round.
TEST(Available, IsTheLeastUpTheTreeOfVersion2) {
  const Machine machine(std::int64_t{1} << 40);
  machine.write("proc/self/cgroup", "0::/slurm/job_7/step_0\n");
  machine.group2("/slurm/job_7/step_0", "max", 3000, 1000);
  machine.group2("/slurm/job_7", "10000", 8000, 1500);
  machine.group2("/slurm", "900000", 100000, 0);
  EXPECT_EQ(machine.available(), 10000 - 8000 + 1500);
  machine.group2("/slurm/job_7/step_0", "4000", 3000, 1000);
  EXPECT_EQ(machine.available(), 2000);
  machine.group2("/slurm/job_8", "10", 10, 0);  // another job's
  EXPECT_EQ(machine.available(), 2000);
  machine.group2("/slurm/job_7", "10000", 12000, 0);  // over the limit: about to be reclaimed
  EXPECT_EQ(machine.available(), 0);
}

// Version 1, beside an empty version 2 hierarchy as in systemd's hybrid mode.
TEST(Available, IsTheLeastUpTheTreeOfVersion1) {
  const Machine machine(1 << 20);
  machine.write("proc/self/cgroup",
                "9:cpu,cpuacct:/elsewhere\n4:hugetlb,memory:/slurm/uid_0/job_7\n0::/user.slice\n");
  machine.group1("/slurm/uid_0/job_7", 50000, 20000, 3000);
  machine.group1("/slurm/uid_0", 9223372036854771712, 20000, 3000);  // the kernel's "no limit"
  machine.group1("", 40000, 30000, 500);
  EXPECT_EQ(machine.available(), 40000 - 30000 + 500);
  machine.group1("/slurm/uid_0/job_7", 50000, 45000, 3000);
  EXPECT_EQ(machine.available(), 8000);
}

// The path is the host's; the container sees its own group as the root of the mount.
TEST(Available, IsTheContainersOwn) {
  const Machine one(1 << 20), two(1 << 20);
  one.write("proc/self/cgroup", "4:memory:/docker/abc\n");
  one.group1("", 7000, 3000, 0);
  EXPECT_EQ(one.available(), 4000);
  two.write("proc/self/cgroup", "0::/../../elsewhere\n");
  two.group2("", "7000", 3000, 10);
  EXPECT_EQ(two.available(), 4010);
}

// What one process sees free must do for all that start at once.
TEST(Available, RefusesWhatDoesNotFit) {
  const Machine machine(std::int64_t{3} << 30);
  EXPECT_NO_THROW(check_available(std::int64_t{1} << 30, 3, machine.root()));
  for (std::int64_t bytes :
       {(std::int64_t{1} << 30) + 1, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_THROW(check_available(bytes, 3, machine.root()), MemoryError);
  }
  try {
    check_available(std::int64_t{2} << 30, 4, machine.root());
    FAIL() << "accepted";
  } catch (const MemoryError& e) {
    EXPECT_EQ(std::string(e.what()).find(
                  "a rank needs 2.00 GiB, but this node has 3.00 GiB left for 4 ranks: "),
              0U)
        << e.what();
  }
}

// More than an address space.
TEST(Arena, NamesItselfWhenItCannotBeMapped) {
  try {
    HostTier tier;
    const Arena arena("activations", tier, std::int64_t{1} << 50);
    FAIL() << "accepted";
  } catch (const MemoryError& e) {
    EXPECT_NE(std::string(e.what()).find("arena 'activations'"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace tessera::memory
