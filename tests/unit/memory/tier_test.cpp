// Memory of the host, and memory that the host must not touch.
#include "memory/tier.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "memory/arena.hpp"
#include "memory/hidden_tier.hpp"

namespace tessera::memory {
namespace {

std::vector<std::byte> pattern(std::size_t n) {
  std::vector<std::byte> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
  return bytes;
}

void run(streams::Task& task) {
  while (task.advance() != streams::Progress::done) {
  }
}

template <typename T>
class Tiers : public testing::Test {};
using Kinds = testing::Types<HostTier, HiddenTier>;
TYPED_TEST_SUITE(Tiers, Kinds);

TYPED_TEST(Tiers, HoldWhatIsWritten) {
  TypeParam tier;
  const Arena arena("a", tier, 10000);
  std::vector<std::byte> copy, seen(10000, std::byte{1});
  tier.read(arena.base(), seen);
  EXPECT_EQ(std::ranges::count(seen, std::byte{0}), 10000) << "it is not zero";
  const auto bytes = pattern(5000);
  tier.write(arena.base() + 17, bytes);
  tier.read(arena.base() + 17, std::span(seen).first(5000));
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), seen.begin()));
  EXPECT_TRUE(std::ranges::equal(tier.host_bytes(arena.base() + 17, 5000, copy), bytes));
  tier.fill(arena.base(), 4,
            [](std::span<std::byte> out) { std::ranges::fill(out, std::byte{9}); });
  tier.read(arena.base(), std::span(seen).first(5));
  EXPECT_EQ(seen[3], std::byte{9});
  EXPECT_EQ(seen[4], std::byte{0});
}

TYPED_TEST(Tiers, CopyWithinThemselvesAndToTheHost) {
  TypeParam tier;
  const Arena one("one", tier, 3 << 20), other("other", tier, 3 << 20);
  const auto bytes = pattern(3 << 20);
  tier.write(one.base(), bytes);
  run(*tier.start_copy(one.base(), other.base(), 3 << 20));
  std::vector<std::byte> host(3 << 20);
  run(*tier.start_copy(other.base(), host.data(), 3 << 20));
  EXPECT_EQ(host, bytes);
}

TEST(HiddenTier, IsWhereNobodyLooks) {
  HiddenTier tier;
  const Arena arena("a", tier, 8192);
  // Of SIGSEGV, or of what a sanitizer makes of it.
  EXPECT_DEATH((void)*const_cast<volatile std::byte*>(arena.base()), "");
  EXPECT_DEATH(*const_cast<volatile std::byte*>(arena.base() + 8191) = std::byte{1}, "");
}

TEST(HiddenTier, IsReachedByTheDevice) {
  HiddenTier tier;
  const Arena one("one", tier, 4096), other("other", tier, 100);
  std::byte outside{};
  EXPECT_EQ(tier.reach(&outside), &outside);
  *tier.reach(one.base() + 4095) = std::byte{3};
  *tier.reach(other.base()) = std::byte{4};
  std::byte byte{};
  tier.read(one.base() + 4095, {&byte, 1});
  EXPECT_EQ(byte, std::byte{3});
  tier.read(other.base(), {&byte, 1});
  EXPECT_EQ(byte, std::byte{4});
}

}  // namespace
}  // namespace tessera::memory
