#include "io/sampler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "core/error.hpp"

namespace tessera {
namespace {

std::vector<std::int64_t> epoch_of(const io::Sampler& sampler, std::int64_t epoch) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < sampler.sequences(); ++i) {
    order.push_back(sampler.sequence_of(epoch * sampler.sequences() + i));
  }
  return order;
}

TEST(Sampler, EveryEpochIsAPermutation) {
  for (const std::int64_t n :
       {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 63, 64, 65, 1000, 4096, 4097, 30011})
    for (const std::int64_t epoch : {0, 1, 5}) {
      std::vector<int> seen(static_cast<std::size_t>(n));
      for (const std::int64_t s : epoch_of(io::Sampler(n, 42, io::Shuffle::yes), epoch)) {
        ASSERT_TRUE(s >= 0 && s < n) << s;
        ++seen[static_cast<std::size_t>(s)];
      }
      EXPECT_EQ(seen, std::vector<int>(static_cast<std::size_t>(n), 1)) << n << " epoch " << epoch;
    }
}

TEST(Sampler, EpochsAndSeedsDiffer) {
  const io::Sampler a(100, 1, io::Shuffle::yes), b(100, 2, io::Shuffle::yes);
  EXPECT_NE(epoch_of(a, 0), epoch_of(a, 1));
  EXPECT_NE(epoch_of(a, 0), epoch_of(b, 0));
  EXPECT_EQ(epoch_of(a, 3), epoch_of(io::Sampler(100, 1, io::Shuffle::yes), 3));
}

// The order is part of a run's identity: a resumed run must see the same data as the old binary.
TEST(Sampler, TheOrderIsFixedForAllTime) {
  const io::Sampler sampler(1000003, 1234, io::Shuffle::yes);
  std::vector<std::int64_t> first;
  for (std::int64_t g = 0; g < 4; ++g) first.push_back(sampler.sequence_of(g));
  EXPECT_EQ(first, (std::vector<std::int64_t>{978133, 79379, 951993, 646524}));
}

TEST(Sampler, LooksRandom) {
  // Mean displacement of a uniform permutation is n / 3 with a standard deviation of about
  // sqrt(2 n / 45) (Knuth's analysis of sum |p(i) - i|, divided by n): five of them are allowed.
  const std::int64_t n = 20000;
  const auto order = epoch_of(io::Sampler(n, 9, io::Shuffle::yes), 0);
  double displacement = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    displacement += std::abs(static_cast<double>(order[i]) - static_cast<double>(i));
  }
  const double count = static_cast<double>(n);
  EXPECT_NEAR(displacement / count, count / 3, 5 * std::sqrt(2 * count / 45));
}

TEST(Sampler, HandlesMoreSequencesThanFitIntoMemory) {
  const std::int64_t n = (std::int64_t{1} << 53) + 7;
  const io::Sampler sampler(n, 5, io::Shuffle::yes);
  std::int64_t beyond_32_bits = 0;
  for (std::int64_t g = 0; g < 100; ++g) {
    const std::int64_t s = sampler.sequence_of(g * (n / 100) + n);
    ASSERT_TRUE(s >= 0 && s < n) << s;
    if (s > std::int64_t{1} << 32) ++beyond_32_bits;
  }
  EXPECT_GE(beyond_32_bits, 99);
}

TEST(Sampler, KeepsTheOrderWithoutShuffling) {
  const io::Sampler sampler(10, 1, io::Shuffle::no);
  EXPECT_EQ(sampler.sequence_of(3), 3);
  EXPECT_EQ(sampler.sequence_of(27), 7);
}

TEST(Sampler, RefusesAnEmptyCorpus) {
  EXPECT_THROW(io::Sampler(0, 1, io::Shuffle::yes), DataError);
}

}  // namespace
}  // namespace tessera
