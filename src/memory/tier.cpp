#include "memory/tier.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "core/limits.hpp"
#include "core/math.hpp"

namespace tessera::memory {
namespace {

constexpr std::int64_t kHuge = 2 << 20;

}  // namespace

std::span<const std::byte> Tier::host_bytes(std::byte* from, std::int64_t bytes,
                                            std::vector<std::byte>& copy) {
  const auto n = static_cast<std::size_t>(bytes);
  if (const std::byte* there = in_place(from)) return {there, n};
  copy.resize(n);
  read(from, copy);
  return copy;
}

std::byte* HostTier::allocate(std::int64_t bytes) {
  void* p = mmap(nullptr, static_cast<std::size_t>(round_up(bytes, kHuge)), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) memory_refused(fmt::format("map {} bytes", bytes), errno);
  auto* base = static_cast<std::byte*>(p);
  madvise(p, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);  // advice: failure only costs speed
  for (std::int64_t at = 0; at < bytes; at += 4096) base[at] = std::byte{0};
  return base;
}

void HostTier::release(std::byte* base, std::int64_t bytes) {
  munmap(base, static_cast<std::size_t>(round_up(bytes, kHuge)));
}

void HostTier::write(std::byte* to, std::span<const std::byte> from) {
  std::memcpy(to, from.data(), from.size());
}

void HostTier::read(const std::byte* from, std::span<std::byte> to) {
  std::memcpy(to.data(), from, to.size());
}

std::unique_ptr<streams::Task> HostTier::start_copy(const std::byte* from, std::byte* to,
                                                    std::int64_t bytes) {
  return streams::make_copy_task(from, to, bytes);
}

}  // namespace tessera::memory
