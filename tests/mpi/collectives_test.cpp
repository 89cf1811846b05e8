// Collectives over MPI against the same sums and copies on one rank: equal bits, since the order of
// additions is part of the contract.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/math.hpp"
#include "core/random.hpp"
#include "streams/background.hpp"
#include "tests/support/tree_order.hpp"
#include "world.hpp"

namespace tessera::test {
namespace {

using namespace comm;

/// Elements [range) of what a rank contributes.
std::vector<float> numbers_of(std::int64_t rank, Range range, std::uint64_t seed) {
  const RandomKey key = random_key(seed, RandomPurpose::sampling, static_cast<std::uint64_t>(rank));
  std::vector<float> all;
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const float x = to_uniform(random_bits(key, 0, static_cast<std::uint64_t>(i))) - 0.5F;
    all.push_back(std::ldexp(x, static_cast<int>(i % 13)));
  }
  return all;
}

template <typename T>
View view(std::vector<T>& v, std::int64_t begin, std::int64_t count) {
  return View(reinterpret_cast<std::byte*>(v.data() + begin), DTypeOf<T>::value, {count});
}

struct Way {
  bool one_node;  // or each rank on its own, which makes pieces small
  std::int64_t elements;
};
/// Shards smaller than the number of ranks, odd ones, around the end of a piece, and of more pieces
/// than are in flight at once.
constexpr std::array kWays = {Way{false, 1},
                              Way{false, 2},
                              Way{false, 17},
                              Way{false, kPieceInter / 4},
                              Way{false, kPieceInter / 4 + 1},
                              Way{false, 9 * kPieceInter / 4 + 5},
                              Way{true, 17},
                              Way{true, kPieceIntra / 4 + 1}};

GroupShape shape_of(std::int64_t local) {
  const std::int64_t size = session().size();
  return {.size = size, .local = local, .nodes = size / local};
}

/// The same ranks on one node and on as many nodes.
std::array<std::unique_ptr<Group>, 2> both_groups() {
  return {make_mpi_group(all_ranks(), shape_of(1)),
          make_mpi_group(all_ranks(), shape_of(session().size()))};
}

std::vector<std::uint8_t> staging_of(const Group& group, DType wire, DType full = DType::f32) {
  return std::vector<std::uint8_t>(
      static_cast<std::size_t>(reduce_scatter_staging(group.shape(), wire, full)));
}

/// What reduce_scatter must leave in a shard of `n` elements of this rank that held `before`, which
/// is not added to when it is empty.
std::vector<float> expected_sum(const Group& group, std::int64_t n, DType wire, std::uint64_t seed,
                                const std::vector<float>& before) {
  std::vector<std::vector<float>> parts;
  for (std::int64_t r = 0; r < group.shape().size; ++r) {
    parts.push_back(numbers_of(r, {group.rank() * n, (group.rank() + 1) * n}, seed));
    if (wire != DType::bf16) continue;
    for (float& x : parts.back()) x = static_cast<float>(bf16(x));
  }
  std::vector<float> sums;
  for (std::size_t i = 0; std::ssize(sums) < n; ++i) {
    const float sum = tree_order_sum(0, group.shape().size, [&](std::int64_t r) {
      return parts[static_cast<std::size_t>(r)][i];
    });
    sums.push_back(before.empty() ? sum : before[i] + sum);
  }
  return sums;
}

class Collectives : public testing::TestWithParam<DType> {};

TEST_P(Collectives, GatherShardsInRankOrder) {
  const std::int64_t size = session().size(), rank = session().rank();
  const auto groups = both_groups();
  for (const auto& [one_node, n] : kWays) {
    for (bool in_place : {false, true}) {
      const std::int64_t bytes = n * size_of(GetParam());
      std::vector<std::uint8_t> full(static_cast<std::size_t>(size * bytes)), expected = full;
      for (std::size_t i = 0; i < expected.size(); ++i)  // no period, so that pieces differ
        expected[i] = static_cast<std::uint8_t>(i * 2'654'435'761U >> 24);
      std::vector<std::uint8_t> own(expected.begin() + rank * bytes,
                                    expected.begin() + (rank + 1) * bytes);
      std::byte* shard =
          reinterpret_cast<std::byte*>(in_place ? full.data() + rank * bytes : own.data());
      if (in_place) std::copy(own.begin(), own.end(), full.begin() + rank * bytes);
      finish(*groups[one_node]->start(AllGather{
          .shard = View(shard, GetParam(), {n}),
          .full = View(reinterpret_cast<std::byte*>(full.data()), GetParam(), {size * n})}));
      EXPECT_EQ(full, expected) << n << (in_place ? " in place" : "");
    }
  }
}

enum class Where { overwrite, add, in_place };

TEST_P(Collectives, ReduceInTheOrderOfTheTree) {
  const std::int64_t size = session().size(), rank = session().rank();
  const auto groups = both_groups();
  for (const auto& [one_node, n] : kWays) {
    Group& group = *groups[one_node];
    auto staging = staging_of(group, GetParam());
    for (Where where : {Where::overwrite, Where::add, Where::in_place}) {
      const auto seed = static_cast<std::uint64_t>(n);
      auto full = numbers_of(rank, {0, size * n}, seed);
      const std::vector<float> before(static_cast<std::size_t>(where == Where::add ? n : 0), 0.3F);
      std::vector<float> shard(static_cast<std::size_t>(n), 0.3F);
      const bool inside = where == Where::in_place;
      finish(*group.start(
          ReduceScatter{.full = view(full, 0, size * n),
                        .shard = inside ? view(full, rank * n, n) : view(shard, 0, n),
                        .staging = view(staging, 0, static_cast<std::int64_t>(staging.size())),
                        .wire = GetParam(),
                        .write = where == Where::add ? Write::add : Write::overwrite}));
      if (inside) shard.assign(full.begin() + rank * n, full.begin() + (rank + 1) * n);
      EXPECT_EQ(shard, expected_sum(group, n, GetParam(), seed, before))
          << n << " elements, way " << static_cast<int>(where);
    }
  }
}

std::vector<bf16> rounded(const std::vector<float>& numbers) {
  return {numbers.begin(), numbers.end()};
}

/// Whatever the wire, bf16 terms arrive as they are; their f32 sum is rounded once, after it was
/// added to what the shard held.
TEST_P(Collectives, ReduceSumsOfBf16InF32) {
  const std::int64_t size = session().size(), rank = session().rank();
  const auto groups = both_groups();
  for (const auto& [one_node, n] : kWays) {
    Group& group = *groups[one_node];
    auto staging = staging_of(group, GetParam(), DType::bf16);
    for (Where where : {Where::overwrite, Where::add, Where::in_place}) {
      const auto seed = static_cast<std::uint64_t>(n);
      auto full = rounded(numbers_of(rank, {0, size * n}, seed));
      std::vector<bf16> shard(static_cast<std::size_t>(n), bf16(0.3F));
      const std::vector<float> before(static_cast<std::size_t>(where == Where::add ? n : 0),
                                      static_cast<float>(bf16(0.3F)));
      const bool inside = where == Where::in_place;
      finish(*group.start(
          ReduceScatter{.full = view(full, 0, size * n),
                        .shard = inside ? view(full, rank * n, n) : view(shard, 0, n),
                        .staging = view(staging, 0, static_cast<std::int64_t>(staging.size())),
                        .wire = GetParam(),
                        .write = where == Where::add ? Write::add : Write::overwrite}));
      if (inside) shard.assign(full.begin() + rank * n, full.begin() + (rank + 1) * n);
      const auto want = rounded(expected_sum(group, n, DType::bf16, seed, before));
      const bool same = std::ranges::equal(shard, want, {}, &bf16::bits, &bf16::bits);
      EXPECT_TRUE(same) << n << " elements, way " << static_cast<int>(where);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Collectives, testing::Values(DType::f32, DType::bf16),
                         [](const auto& type) { return std::string(to_string(type.param)); });

TEST(Words, AddUpExactly) {
  const auto group = make_mpi_group(all_ranks(), shape_of(session().size()));
  const std::int64_t size = session().size(), rank = session().rank();
  std::vector<std::int64_t> words = {1, rank, -(rank << 40), (std::int64_t{1} << 53) + rank};
  finish(*group->start(AllReduceWords{.words = view(words, 0, 4)}));
  const std::int64_t sum = size * (size - 1) / 2;
  EXPECT_EQ(words, (std::vector<std::int64_t>{size, sum, -(sum << 40),
                                              size * (std::int64_t{1} << 53) + sum}));
}

// Trap 2: every rank takes part in making every group, also who has none; groups of any partition,
// in any order of members, have the rank order that was asked for.
TEST(Groups, OfAnyPartitionInAnyOrder) {
  const int size = session().size(), me = session().rank();
  std::vector<std::vector<int>> mine;  // of each partition, this rank's group; empty: none
  for (int parts = 1; parts <= size; ++parts) {
    for (const bool turned : {false, true}) {
      std::vector<int> members;
      for (int r = 0; r < size; ++r) {
        if (r % parts == me % parts) members.push_back(r);
      }
      if (turned) std::reverse(members.begin(), members.end());
      mine.push_back(members);
    }
  }
  mine.push_back(me == 0 ? std::vector<int>{} : all_ranks());
  if (me != 0) mine.back().erase(mine.back().begin());
  std::vector<std::unique_ptr<Group>> groups;
  for (const auto& members : mine) {
    const auto n = static_cast<std::int64_t>(members.size());
    groups.push_back(make_mpi_group(members, GroupShape{.size = n, .local = n, .nodes = 1}));
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    EXPECT_EQ(groups[g] != nullptr, !mine[g].empty());
    if (!groups[g] || mine[g].size() == 1) continue;
    EXPECT_EQ(groups[g]->rank(), std::find(mine[g].begin(), mine[g].end(), me) - mine[g].begin());
    std::vector<float> own = {static_cast<float>(me)}, full(mine[g].size());
    finish(*groups[g]->start(AllGather{
        .shard = view(own, 0, 1), .full = view(full, 0, static_cast<std::int64_t>(full.size()))}));
    EXPECT_EQ(full, std::vector<float>(mine[g].begin(), mine[g].end()));
  }
}

// A sequence split by position: each rank has a part of every sample, gathered and reduced sample
// by sample.
TEST(Groups, GatherAndReduceInBlocks) {
  const std::int64_t size = session().size(), rank = session().rank();
  if (size == 1) GTEST_SKIP() << "needs two ranks";
  for (Group* group : {both_groups()[0].release(), both_groups()[1].release()}) {
    const std::unique_ptr<Group> owner(group);
    for (const std::int64_t n : {1, 48, 30000}) {
      constexpr std::int64_t kBlocks = 3;
      std::vector<float> shard(static_cast<std::size_t>(kBlocks * n)),
          full(static_cast<std::size_t>(kBlocks * n * size));
      const auto value = [&](std::int64_t block, std::int64_t r, std::int64_t e) {
        return static_cast<float>((block * size + r) * n + e);
      };
      for (std::int64_t i = 0; i < kBlocks * n; ++i)
        shard[static_cast<std::size_t>(i)] = value(i / n, rank, i % n);
      finish(*group->start(AllGather{.shard = view(shard, 0, kBlocks * n),
                                     .full = view(full, 0, kBlocks * n * size),
                                     .blocks = kBlocks}));
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < kBlocks * n * size; ++i)
        wrong += full[static_cast<std::size_t>(i)] != static_cast<float>(i) ? 1 : 0;
      EXPECT_EQ(wrong, 0) << n;
      auto staging = staging_of(*group, DType::f32);
      finish(*group->start(
          ReduceScatter{.full = view(full, 0, kBlocks * n * size),
                        .shard = view(shard, 0, kBlocks * n),
                        .staging = View(reinterpret_cast<std::byte*>(staging.data()), DType::u8,
                                        {static_cast<std::int64_t>(staging.size())}),
                        .blocks = kBlocks}));
      wrong = 0;
      for (std::int64_t i = 0; i < kBlocks * n; ++i) {
        const float sum = value(i / n, rank, i % n) * static_cast<float>(size);
        wrong += shard[static_cast<std::size_t>(i)] != sum ? 1 : 0;
      }
      EXPECT_EQ(wrong, 0) << n << " elements (below 2^24 sums of powers of two ranks are exact)";
    }
  }
}

// Two groups of the same ranks on two streams, many collectives of different lengths under way
// while the caller computes: no message reaches the wrong one.
TEST(Groups, CommunicateAtOnceWhileTheCallerComputes) {
  const std::int64_t size = session().size(), rank = session().rank();
  const auto gather = make_mpi_group(all_ranks(), shape_of(1)),
             reduce = make_mpi_group(all_ranks(), shape_of(1));
  constexpr std::size_t kRounds = 12;
  std::vector<std::vector<float>> own, gathered, full, sums;
  auto staging = staging_of(*reduce, DType::f32);
  for (std::size_t i = 0; i < kRounds; ++i) {
    const std::int64_t n = 1 + 9'001 * static_cast<std::int64_t>(i);
    own.push_back(numbers_of(rank, {0, n}, 100 + i));
    gathered.emplace_back(static_cast<std::size_t>(n * size));
    full.push_back(numbers_of(rank, {0, n * size}, i));
    sums.emplace_back(static_cast<std::size_t>(n));
  }
  volatile double computed = 0;
  {
    streams::BackgroundStreams streams;
    for (std::size_t i = 0; i < kRounds; ++i) {
      const auto n = static_cast<std::int64_t>(sums[i].size());
      streams.enqueue(1, {}, [&, i, n] {
        return gather->start(
            AllGather{.shard = view(own[i], 0, n), .full = view(gathered[i], 0, size * n)});
      });
      // Its staging is shared: a stream runs one collective after the other.
      streams.enqueue(2, {}, [&, i, n] {
        return reduce->start(
            ReduceScatter{.full = view(full[i], 0, size * n),
                          .shard = view(sums[i], 0, n),
                          .staging = view(staging, 0, static_cast<std::int64_t>(staging.size()))});
      });
      for (int k = 0; k < 20'000; ++k) computed = computed + std::sqrt(k);
    }
    streams.wait(streams.last(1));
    streams.wait(streams.last(2));
  }
  for (std::size_t i = 0; i < kRounds; ++i) {
    const auto n = static_cast<std::ptrdiff_t>(sums[i].size());
    for (std::int64_t r = 0; r < size; ++r) {
      const auto theirs = numbers_of(r, {0, n}, 100 + i);
      EXPECT_TRUE(std::equal(theirs.begin(), theirs.end(), gathered[i].begin() + r * n)) << i;
    }
    EXPECT_EQ(sums[i], expected_sum(*reduce, n, DType::f32, i, {})) << i;
  }
}

// The progress thread naps only when no task gets on: a collective whose peers have not come must
// say so, or it would keep a core busy.
TEST(Groups, AreIdleUntilPeersCome) {
  const auto group = make_mpi_group(all_ranks(), shape_of(1));
  const std::int64_t size = session().size(), rank = session().rank();
  if (size == 1) return;  // nobody to wait for; alike on all ranks
  const std::int64_t n = 20 * kPieceInter / 4;
  auto own = numbers_of(rank, {0, n}, 5), full = numbers_of(rank, {0, n * size}, 6);
  std::vector<float> gathered(static_cast<std::size_t>(n * size)), sum(static_cast<std::size_t>(n));
  auto staging = staging_of(*group, DType::f32);
  const std::array<CollectiveCall, 2> calls = {
      AllGather{.shard = view(own, 0, n), .full = view(gathered, 0, n * size)},
      ReduceScatter{.full = view(full, 0, n * size),
                    .shard = view(sum, 0, n),
                    .staging = view(staging, 0, static_cast<std::int64_t>(staging.size()))}};
  for (const CollectiveCall& call : calls) {
    if (rank != 0) control().barrier();
    const auto task = group->start(call);
    if (rank == 0) {
      while (task->advance() != streams::Progress::idle) {
      }
      control().barrier();
    }
    finish(*task);
    control().barrier();
  }
  EXPECT_EQ(sum, expected_sum(*group, n, DType::f32, 6, {}));
}

// A staging buffer that is too small would be overrun by a peer's pieces.
TEST(Groups, RefuseShortStaging) {
  const auto group = make_mpi_group(all_ranks(), shape_of(1));
  if (session().size() == 1) return;  // needs no staging; alike on all ranks
  std::vector<float> full(static_cast<std::size_t>(session().size())), shard(1);
  auto staging = staging_of(*group, DType::f32);
  staging.pop_back();
  EXPECT_THROW(group->start(ReduceScatter{
                   .full = view(full, 0, session().size()),
                   .shard = view(shard, 0, 1),
                   .staging = view(staging, 0, static_cast<std::int64_t>(staging.size()))}),
               InternalError);
}

}  // namespace
}  // namespace tessera::test
