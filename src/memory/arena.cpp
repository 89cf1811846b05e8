#include "memory/arena.hpp"

#include <algorithm>
#include <fstream>
#include <limits>

#include "core/bytes.hpp"
#include "core/error.hpp"

namespace tessera::memory {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

/// The number after `key` in a file of keys and numbers, in its unit; -1 when there is none.
std::int64_t value_after(const std::string& key, const fs::path& file) {
  std::ifstream in(file);
  in.exceptions(std::ios::badbit);  // throws if memory runs out
  std::string word;
  while (in >> word) {
    std::int64_t value = 0;
    if (word == key && in >> value) return value;
  }
  return -1;
}

std::int64_t number_in(const fs::path& file) {
  std::ifstream in(file);
  std::int64_t value = -1;
  return in >> value ? value : -1;  // "max" is no number
}

/// Where each version of cgroups keeps what a group may use and does use. `controller` is how a
/// line of /proc/self/cgroup names the hierarchy ("4:memory:/job", "0::/job").
struct CgroupVersion {
  const char *controller, *mount, *limit, *usage, *cache;
};
constexpr CgroupVersion kVersions[] = {
    {"memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_inactive_file"},
    {"", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"}};

/// What the limits of cgroup `path` and of all groups above it leave. In a container the path may
/// be one that only the host sees; then the mount's own files are the container's.
std::int64_t left_in_cgroup(const fs::path& root, const CgroupVersion& version, fs::path path) {
  std::int64_t left = kNoLimit;
  for (path = path.relative_path();; path = path.parent_path()) {
    const fs::path group = root / version.mount / path;
    const std::int64_t limit = number_in(group / version.limit);
    const std::int64_t used = number_in(group / version.usage);
    if (limit >= 0 && used >= 0) {
      const std::int64_t cache = value_after(version.cache, group / "memory.stat");
      left = std::min(left,
                      std::max<std::int64_t>(0, limit - used + std::max<std::int64_t>(0, cache)));
    }
    if (path.empty()) return left;
  }
}

}  // namespace

Arena::Arena(std::string name, Tier& tier, std::int64_t bytes)
    : name_(std::move(name)), tier_(tier), bytes_(bytes) {
  if (bytes_ == 0) return;
  try {
    base_ = tier_.allocate(bytes_);
  } catch (Error& e) {
    e.add_context(fmt::format("arena '{}'", name_));
    throw;
  }
}

Arena::~Arena() {
  if (base_ != nullptr) tier_.release(base_, bytes_);
}

std::int64_t resident_bytes() { return value_after("VmRSS:", "/proc/self/status") * 1024; }

std::int64_t peak_resident_bytes() { return value_after("VmHWM:", "/proc/self/status") * 1024; }

std::int64_t available_bytes(const fs::path& root) {
  std::int64_t free = kNoLimit;
  if (const std::int64_t kib = value_after("MemAvailable:", root / "proc/meminfo"); kib >= 0)
    free = kib * 1024;
  std::ifstream groups(root / "proc/self/cgroup");
  groups.exceptions(std::ios::badbit);  // throws if memory runs out
  std::string id, controllers, path;
  while (std::getline(groups, id, ':') && std::getline(groups, controllers, ':') &&
         std::getline(groups, path)) {
    for (const CgroupVersion& version : kVersions) {
      if (("," + controllers + ",").find(fmt::format(",{},", version.controller)) !=
          controllers.npos)
        free = std::min(free, left_in_cgroup(root, version, path));
    }
  }
  return free;
}

void check_available(std::int64_t bytes, std::int64_t processes, const fs::path& root) {
  const std::int64_t free = available_bytes(root);
  if (bytes <= free / processes) return;
  throw MemoryError(fmt::format(
      "a rank needs {:.2f} GiB, but this node has {:.2f} GiB left for {}: use fewer ranks a node, "
      "a higher zero.stage, a smaller batch.micro, or recompute.policy = \"full\" (snapshots for "
      "checkpoint.async and what is offloaded to the host count too)",
      static_cast<double>(bytes) / 0x1p30, static_cast<double>(free) / 0x1p30,
      count_text(processes, "rank")));
}

}  // namespace tessera::memory
