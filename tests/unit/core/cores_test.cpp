#include "core/cores.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace tessera {
namespace {

CoreMask cores(std::size_t begin, std::size_t end) {
  CoreMask mask;
  for (std::size_t c = begin; c < end; ++c) mask.set(c);
  return mask;
}

// No binding: every rank sees the same cores, be they all of the node's or the job's part of them.
TEST(CoresEach, DividesWhatAllSee) {
  for (std::size_t n : {1, 2, 3, 5, 7, 8, 64, 192}) {
    for (std::size_t ranks : {1, 2, 3, 4, 6, 7, 8, 48}) {
      const std::vector<CoreMask> masks(ranks, cores(8, 8 + n));
      EXPECT_EQ(cores_each(masks), std::max<int>(1, static_cast<int>(n / ranks)))
          << n << " cores, " << ranks << " ranks";
    }
  }
}

TEST(CoresEach, LeavesBoundRanksTheirOwn) {
  const std::vector<CoreMask> masks = {cores(0, 8), cores(8, 16), cores(32, 40)};
  EXPECT_EQ(cores_each(masks), 8);
}

// All ranks have the same number: a rank with more cores would only wait for the others.
TEST(CoresEach, IsThatOfTheRankWithTheLeast) {
  EXPECT_EQ(cores_each(std::vector<CoreMask>{cores(0, 8), cores(8, 11)}), 3);
}

TEST(CoresEach, DividesSockets) {
  const CoreMask first = cores(0, 32), second = cores(32, 64);
  EXPECT_EQ(cores_each(std::vector<CoreMask>{first, first, second, second}), 16);
  EXPECT_EQ(cores_each(std::vector<CoreMask>{first, first, first, second}), 10);
}

// Whatever the masks: as many threads as that on each rank are no more than the node's cores.
TEST(CoresEach, NeverAsksForMoreThanThereIs) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const std::size_t ranks = 1 + random() % 6;
    std::vector<CoreMask> masks(ranks);
    CoreMask all;
    for (CoreMask& mask : masks) {
      for (std::size_t c = 0; c < 24; ++c) mask[c] = random() % 3 == 0;
      mask.set(random() % 24);
      all |= mask;
    }
    const auto each = static_cast<std::size_t>(cores_each(masks));
    EXPECT_TRUE(each == 1 || each * ranks <= all.count()) << each << " on " << ranks << " ranks";
  }
}

TEST(OwnCores, AreSome) { EXPECT_TRUE(own_cores().any()); }

}  // namespace
}  // namespace tessera
