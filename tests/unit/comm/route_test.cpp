// The way of contributions over nodes: whatever the placement, every rank ends with everybody's
// contribution to its own slot, once.
#include "comm/route.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace tessera::comm {
namespace {

/// A slot on its way: whose it is, and how often each rank's contribution is in it.
struct Slot {
  std::int64_t owner = 0;
  std::map<std::int64_t, int> of;
};

/// Moves slots as a plan's ops do; returns what each rank has in the end.
std::vector<std::vector<Slot>> travelled(const std::vector<Route>& routes) {
  const auto size = std::ssize(routes);
  std::vector<std::vector<Slot>> held(routes.size());
  for (std::int64_t r = 0; r < size; ++r) {
    const Route& route = routes[static_cast<std::size_t>(r)];
    EXPECT_EQ(route.outer * route.inner, size);
    for (std::int64_t b = 0; b < route.inner; ++b) {
      for (std::int64_t a = 0; a < route.outer; ++a)
        held[static_cast<std::size_t>(r)].push_back({a * route.inner + b, {{r, 1}}});
    }
  }
  for (std::size_t h = 0; h < routes.front().hops.size(); ++h) {
    std::vector<std::vector<Slot>> next(routes.size());
    for (std::size_t r = 0; r < routes.size(); ++r) {
      const RankGroup& ranks = routes[r].hops.at(h).ranks;
      const std::size_t part = held[r].size() / static_cast<std::size_t>(ranks.count);
      for (std::int64_t p = 0; p < ranks.count; ++p) {
        const auto from = static_cast<std::size_t>(ranks.rank(p));
        const RankGroup& theirs = routes[from].hops.at(h).ranks;
        EXPECT_EQ(theirs, ranks) << "ranks of a hop say the same";
        const std::size_t k =
            (r - static_cast<std::size_t>(theirs.first)) / static_cast<std::size_t>(theirs.stride);
        for (std::size_t i = 0; i < part; ++i) {
          const Slot& arriving = held[from].at(k * part + i);
          if (next[r].size() <= i) next[r].push_back({arriving.owner, {}});
          EXPECT_EQ(next[r][i].owner, arriving.owner) << "slots of different ranks are added";
          for (const auto& [rank, times] : arriving.of) next[r][i].of[rank] += times;
        }
      }
    }
    held = next;
  }
  return held;
}

void expect_sums(const std::vector<int>& node_of, std::size_t hops) {
  std::vector<Route> routes;
  for (std::int64_t r = 0; r < std::ssize(node_of); ++r) routes.push_back(route_of(node_of, r));
  ASSERT_EQ(routes.front().hops.size(), hops);
  const auto held = travelled(routes);
  for (std::size_t r = 0; r < routes.size(); ++r) {
    ASSERT_EQ(held[r].size(), 1U);
    EXPECT_EQ(held[r][0].owner, static_cast<std::int64_t>(r));
    ASSERT_EQ(held[r][0].of.size(), routes.size());
    for (const auto& [rank, times] : held[r][0].of) EXPECT_EQ(times, 1) << "rank " << rank;
    for (const Hop& hop : routes[r].hops) {
      std::int64_t remote = 0;
      for (std::int64_t p = 0; p < hop.ranks.count; ++p)
        remote += node_of[static_cast<std::size_t>(hop.ranks.rank(p))] != node_of[r] ? 1 : 0;
      EXPECT_EQ(hop.remote, remote);
    }
    if (hops == 2) {
      EXPECT_EQ(routes[r].hops[0].remote, 0) << "the first hop stays in the node";
    }
  }
}

TEST(Route, CrossesNodesOnceWhereRanksAreRegular) {
  for (const int nodes : {2, 3, 4}) {
    for (const int local : {2, 3, 8}) {
      std::vector<int> filled, dealt;
      for (int r = 0; r < nodes * local; ++r) {
        filled.push_back(10 - r / local);  // nodes have any numbers
        dealt.push_back(r % nodes);
      }
      expect_sums(filled, 2);
      expect_sums(dealt, 2);
    }
  }
}

TEST(Route, KnowsHowManyNeighboursNodesHave) {
  const auto of = [](const std::vector<int>& node_of) { return neighbours_of_nodes(node_of); };
  EXPECT_EQ(of({0, 0, 0}), 3);
  EXPECT_EQ(of({0, 0, 1, 1}), 2);
  EXPECT_EQ(of({2, 7}), 1);
  EXPECT_EQ(of({0, 1, 0, 1}), 0) << "no neighbours";
  EXPECT_EQ(of({0, 0, 0, 1}), 0);
  EXPECT_EQ(of({0, 0, 1}), 0);
}

TEST(Route, IsOneHopElsewhere) {
  expect_sums({0}, 1);
  expect_sums({3, 3, 3}, 1);           // one node
  expect_sums({0, 1, 2, 3, 4}, 1);     // a rank on each
  expect_sums({0, 0, 0, 1}, 1);        // filled unevenly
  expect_sums({0, 0, 1, 1, 1, 0}, 1);  // in no order
  std::mt19937 random(4);
  for (int round = 0; round < 50; ++round) {
    std::vector<int> node(1 + random() % 9);
    for (int& n : node) n = static_cast<int>(random() % 3);
    expect_sums(node, route_of(node, 0).hops.size());
  }
}

}  // namespace
}  // namespace tessera::comm
