// Agreements between ranks: what one rank knows, all know, above all that something is wrong.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <new>

#include "world.hpp"

namespace tessera::test {
namespace {

/// What together() throws on this rank: exit code and message.
std::pair<int, std::string> agreed(const std::function<void()>& work) {
  try {
    control().together(work);
  } catch (const AgreedError& e) {
    return {static_cast<int>(e.exit_code()), e.what()};
  }
  return {0, ""};
}

/// A message says whose it is, unless it is rank 0's, which speaks for all.
std::string named(int rank, const std::string& text) {
  return rank == 0 ? text : fmt::format("rank {} on {}: {}", rank, comm::host_name(), text);
}

TEST(Together, NothingHappensWhenAllSucceed) {
  int calls = 0;
  EXPECT_EQ(agreed([&] { ++calls; }), std::pair(0, std::string()));
  EXPECT_EQ(calls, 1);
}

TEST(Together, OneFailingRankFailsAllAlike) {
  for (int bad = 0; bad < control().size(); ++bad) {
    const auto [code, message] = agreed([&] {
      if (control().rank() == bad) throw DataError("cannot read");
    });
    EXPECT_EQ(code, 3);
    EXPECT_EQ(message, named(bad, "cannot read"));
  }
  EXPECT_EQ(agreed([] {}).first, 0);  // and life goes on
}

TEST(Together, TheLowestOfSeveralSpeaks) {
  const auto [code, message] = agreed([&] {
    const int rank = control().rank();
    if (rank == 0 && control().size() > 1) return;
    if (rank % 2 == 1) throw IoError("disk full");
    throw MemoryError("too large");
  });
  EXPECT_EQ(code, control().size() > 1 ? 7 : 4);
  EXPECT_EQ(message, control().size() > 1 ? named(1, "disk full") : "too large");
}

TEST(Together, OtherExceptionsHaveCodesToo) {
  const bool last = control().rank() == control().size() - 1;
  EXPECT_EQ(agreed([&] {
              if (last) throw std::bad_alloc();
            }).first,
            4);
  EXPECT_EQ(agreed([&] {
              if (last) throw std::runtime_error("?");
            }).first,
            70);
}

TEST(Control, BroadcastsFromEveryRoot) {
  for (int root = 0; root < control().size(); ++root) {
    for (std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{3'000'000}}) {
      const std::string sent(length, static_cast<char>('a' + root));
      EXPECT_EQ(control().broadcast(control().rank() == root ? sent : "other text", root), sent);
    }
  }
}

TEST(Control, GathersInRankOrder) {
  for (int round = 0; round < 3; ++round) {
    const auto text = [&](int rank) {
      return std::string(static_cast<std::size_t>(rank * round * 40'000), 'x') +
             std::to_string(rank);
    };
    const auto all = control().gather(text(control().rank()));
    if (control().rank() != 0) {
      EXPECT_TRUE(all.empty());
      continue;
    }
    EXPECT_EQ(all.size(), static_cast<std::size_t>(control().size()));
    for (std::size_t r = 0; r < all.size(); ++r) EXPECT_EQ(all[r], text(static_cast<int>(r)));
  }
}

TEST(Control, Reduces) {
  const std::int64_t rank = control().rank(), size = control().size();
  EXPECT_EQ(control().max(rank - 5), size - 6);
  EXPECT_EQ(control().min(rank + (std::int64_t{1} << 60)), std::int64_t{1} << 60);
  EXPECT_EQ(control().sum(static_cast<double>(rank)), static_cast<double>(size * (size - 1) / 2));
  std::vector<std::uint64_t> each(static_cast<std::size_t>(size), 0);
  each[static_cast<std::size_t>(rank)] = ~std::uint64_t{0} - static_cast<std::uint64_t>(rank);
  control().max(each);
  for (std::size_t r = 0; r < each.size(); ++r) EXPECT_EQ(each[r], ~std::uint64_t{0} - r);
  EXPECT_EQ(control().max(0.5 * static_cast<double>(rank)), 0.5 * static_cast<double>(size - 1));
}

// Trap 63: nodes' clocks differ.
TEST(Control, FindsHowFarAClockIsAheadOfRankZeros) {
  const double ahead = 1000.5 * control().rank();
  const auto offset = control().clock_offset([&] {
    return ahead +
           std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
               .count();
  });
  EXPECT_LE(std::abs(offset.ahead - ahead), offset.error + 1e-9) << "and doubles' rounding";
  EXPECT_TRUE(std::isfinite(offset.error));
}

}  // namespace
}  // namespace tessera::test
