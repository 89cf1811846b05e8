#include "memory/arena.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "core/error.hpp"

namespace tessera::memory {
namespace {

TEST(Arena, IsZeroedAndResident) {
  constexpr std::int64_t kBytes = (24 << 20) + 5;
  const std::int64_t before = resident_bytes();
  const Arena arena("state", Tier::device, kBytes);
  EXPECT_EQ(arena.bytes(), kBytes);
  EXPECT_EQ(arena.name(), "state");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.base()) % 4096, 0U);
  EXPECT_GE(resident_bytes() - before, kBytes - (1 << 20)) << "pages were not touched";
  EXPECT_TRUE(std::all_of(arena.base(), arena.base() + kBytes,
                          [](std::byte b) { return b == std::byte{}; }));
}

TEST(Arena, GivesMemoryBack) {
  const std::int64_t before = resident_bytes();
  for (int i = 0; i < 8; ++i) const Arena arena("step", Tier::device, 32 << 20);
  EXPECT_LT(resident_bytes() - before, 40 << 20);
}

TEST(Arena, MayBeEmpty) {
  const Arena arena("none", Tier::host, 0);
  EXPECT_EQ(arena.base(), nullptr);
}

// More than the node has: refused before a page is touched, also where rounding up would overflow.
TEST(Arena, RefusesWhatDoesNotFit) {
  for (std::int64_t bytes : {std::int64_t{1} << 50, std::numeric_limits<std::int64_t>::max()}) {
    try {
      const Arena arena("activations", Tier::device, bytes);
      FAIL() << "accepted " << bytes;
    } catch (const MemoryError& e) {
      EXPECT_NE(std::string(e.what()).find("arena 'activations'"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace tessera::memory
