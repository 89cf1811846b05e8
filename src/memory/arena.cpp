#include "memory/arena.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <limits>

#include "core/error.hpp"
#include "core/math.hpp"

namespace tessera::memory {
namespace {

/// The number after `key` in a /proc file, in its unit; -1 when there is none.
std::int64_t proc_value(const char* path, const std::string& key) {
  std::ifstream in(path);
  std::string word;
  while (in >> word) {
    std::int64_t value = 0;
    if (word == key && in >> value) return value;
  }
  return -1;
}

std::int64_t number_in(const char* path) {
  std::ifstream in(path);
  std::int64_t value = -1;
  return in >> value ? value : -1;  // "max" is no number
}

}  // namespace

Arena::Arena(std::string name, Tier tier, std::int64_t bytes)
    : name_(std::move(name)), tier_(tier), bytes_(bytes) {
  if (bytes_ == 0) return;
  if (const std::int64_t free = available_bytes(); bytes_ > free) {
    throw MemoryError(fmt::format(
        "arena '{}' needs {:.2f} GiB, but the node has {:.2f} GiB left: use fewer ranks a node, "
        "a smaller batch.micro, recompute.policy = \"full\", or a higher zero.stage",
        name_, static_cast<double>(bytes_) / 0x1p30, static_cast<double>(free) / 0x1p30));
  }
  constexpr std::int64_t kHuge = 2 << 20;
  void* p = mmap(nullptr, static_cast<std::size_t>(round_up(bytes_, kHuge)), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    throw MemoryError(
        fmt::format("arena '{}': cannot map {} bytes: {}", name_, bytes_, errno_text(errno)));
  }
  base_ = static_cast<std::byte*>(p);
  madvise(p, static_cast<std::size_t>(bytes_), MADV_HUGEPAGE);  // advice: failure only costs speed
  for (std::int64_t at = 0; at < bytes_; at += 4096) base_[at] = std::byte{0};
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, static_cast<std::size_t>(round_up(bytes_, 2 << 20)));
}

std::int64_t resident_bytes() { return proc_value("/proc/self/status", "VmRSS:") * 1024; }

std::int64_t available_bytes() {
  std::int64_t free = std::numeric_limits<std::int64_t>::max();
  if (const std::int64_t kib = proc_value("/proc/meminfo", "MemAvailable:"); kib >= 0)
    free = kib * 1024;
  const std::int64_t limit = number_in("/sys/fs/cgroup/memory.max"),
                     used = number_in("/sys/fs/cgroup/memory.current");
  if (limit >= 0 && used >= 0) free = std::min(free, limit - used);
  return free;
}

}  // namespace tessera::memory
