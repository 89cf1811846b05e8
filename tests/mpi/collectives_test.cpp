// Groups over MPI against sums and copies that every rank can work out by itself.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "comm/mpi/mpi_group.hpp"

namespace tessera::comm {
namespace {

int world_rank() { return Control().rank(); }
int world_size() { return Control().size(); }

std::unique_ptr<Group> world_group() {
  std::vector<int> all(static_cast<std::size_t>(world_size()));
  std::iota(all.begin(), all.end(), 0);
  return make_mpi_group(all, world_size());
}

void run(Group& group, const CollectiveCall& call) {
  const auto task = group.start(call);
  while (!task->advance()) {
  }
}

template <typename T>
View view(std::vector<T>& v) {
  return View(reinterpret_cast<std::byte*>(v.data()), DTypeOf<T>::value,
              {static_cast<std::int64_t>(v.size())});
}

/// Rank r's contribution to element i: a value whose sums round, so that their order shows.
float contribution(std::int64_t r, std::int64_t i) {
  return 1.0f / static_cast<float>(1 + (7 * r + 13 * i) % 1009);
}

/// ((0+1)+(2+3))+...: neighbours first, a last odd one carried up.
float tree(std::vector<float> parts) {
  while (parts.size() > 1) {
    std::vector<float> next;
    for (std::size_t i = 0; i < parts.size(); i += 2) {
      next.push_back(i + 1 < parts.size() ? parts[i] + parts[i + 1] : parts[i]);
    }
    parts = std::move(next);
  }
  return parts.at(0);
}

// One element, a prime, one short of and past a piece, several rounds of pieces in flight.
const std::vector<std::int64_t> kSizes = {1, 17, kPieceIntra / 4 - 1, kPieceIntra / 4 + 1,
                                          kPieceIntra / 4 * (2 * kPiecesInFlight + 1) + 5};

TEST(Collectives, AllGatherInRankOrder) {
  const auto group = world_group();
  const std::int64_t size = world_size(), rank = world_rank();
  for (const std::int64_t n : kSizes) {
    std::vector<float> full(static_cast<std::size_t>(n * size), -1);
    const View all = view(full), mine = all.range(rank * n, n);  // in place
    for (std::int64_t i = 0; i < n; ++i) mine.as<float>()[i] = contribution(rank, i);
    run(*group, AllGather{.shard = mine, .full = all});
    for (std::int64_t r = 0; r < size; ++r) {
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(full[static_cast<std::size_t>(r * n + i)], contribution(r, i)) << r << " " << i;
      }
    }
  }
}

struct Reduction {
  DType wire;
  kernels::Write write;
};

class ReduceScatters : public testing::TestWithParam<Reduction> {};

/// The sum is a fixed tree over the rank index, to the bit (trap 35).
TEST_P(ReduceScatters, SumsInAFixedTree) {
  const auto [wire, write] = GetParam();
  const auto group = world_group();
  const std::int64_t size = world_size(), rank = world_rank();
  const std::int64_t bytes = reduce_scatter_staging(group->shape(), wire);
  std::vector<std::byte> staging(static_cast<std::size_t>(std::max<std::int64_t>(1, bytes)));
  const auto travelled = [&, type = wire](float x) {
    return type == DType::bf16 ? static_cast<float>(bf16(x)) : x;
  };
  for (const std::int64_t n : kSizes) {
    std::vector<float> full(static_cast<std::size_t>(n * size)),
        shard(static_cast<std::size_t>(n), 3.0f);
    for (std::int64_t i = 0; i < n * size; ++i) {
      full[static_cast<std::size_t>(i)] = contribution(rank, i);
    }
    run(*group, ReduceScatter{.full = view(full),
                              .shard = view(shard),
                              .staging = View(staging.data(), DType::u8, {bytes}),
                              .wire = wire,
                              .write = write});
    for (std::int64_t i = 0; i < n; ++i) {
      std::vector<float> parts;
      for (std::int64_t r = 0; r < size; ++r)
        parts.push_back(travelled(contribution(r, rank * n + i)));
      const float sum = tree(parts);
      ASSERT_EQ(shard[static_cast<std::size_t>(i)], write == kernels::Write::add ? 3.0f + sum : sum)
          << n << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReduceScatters,
                         testing::Values(Reduction{DType::f32, kernels::Write::overwrite},
                                         Reduction{DType::f32, kernels::Write::add},
                                         Reduction{DType::bf16, kernels::Write::overwrite},
                                         Reduction{DType::bf16, kernels::Write::add}));

TEST(Collectives, WordsAreSummed) {
  const auto group = world_group();
  const std::int64_t size = world_size();
  std::vector<std::int64_t> words = {1, world_rank(), std::int64_t{1} << 50};
  run(*group, AllReduceWords{.words = view(words)});
  EXPECT_EQ(words[0], size);
  EXPECT_EQ(words[1], size * (size - 1) / 2);
  EXPECT_EQ(words[2], size << 50);
}

/// Trap 2: every rank creates every group, members or not.
TEST(Groups, OfEvenAndOddRanks) {
  const int size = world_size(), rank = world_rank();
  for (const int parity : {0, 1}) {
    std::vector<int> members;
    for (int r = parity; r < size; r += 2) members.push_back(r);
    if (members.empty()) continue;
    const auto group = make_mpi_group(members, size);
    ASSERT_EQ(group != nullptr, rank % 2 == parity);
    if (!group) continue;
    EXPECT_EQ(group->rank(), rank / 2);
    EXPECT_EQ(group->shape().size, static_cast<std::int64_t>(members.size()));
    std::vector<std::int64_t> words = {rank};
    run(*group, AllReduceWords{.words = view(words)});
    EXPECT_EQ(words[0], std::accumulate(members.begin(), members.end(), std::int64_t{0}));
  }
}

TEST(Control, AgreesAndPassesTextOn) {
  const Control control;
  const int rank = control.rank(), last = control.size() - 1;
  EXPECT_EQ(control.max(std::int64_t{rank}), last);
  EXPECT_EQ(control.min(std::int64_t{rank}), 0);
  EXPECT_EQ(control.broadcast(rank == last ? "from the last" : "", last), "from the last");
  const auto texts = control.gather(std::string(static_cast<std::size_t>(rank), 'x'));
  if (rank == 0) {
    for (int r = 0; r <= last; ++r) EXPECT_EQ(texts[static_cast<std::size_t>(r)].size(), r);
  }
}

/// Trap 52: all ranks take the same exit, with the same code, and learn why.
TEST(Control, OneRanksErrorIsEverybodys) {
  const Control control;
  try {
    control.together([&] {
      if (control.rank() == control.size() - 1) throw DataError("the last rank's trouble");
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::data);
    EXPECT_NE(std::string(e.what()).find("the last rank's trouble"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace tessera::comm
