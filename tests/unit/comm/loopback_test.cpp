// The collectives over messages that arrive in any order, in one thread: shards of several pieces,
// any number of ranks, and what ends badly.
#include "comm/loopback.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

#include "comm/transport_group.hpp"
#include "support/tree_order.hpp"

namespace tessera::comm {
namespace {

template <typename T>
View view(std::vector<T>& v, std::int64_t begin, std::int64_t count) {
  return View(reinterpret_cast<std::byte*>(v.data() + begin), DTypeOf<T>::value, {count});
}

/// The ranks of one group, whose tasks and messages move in an order of the seed's choice.
class Ranks {
 public:
  Ranks(std::int64_t size, Sends sends, unsigned seed) : loopback_(sends), random_(seed) {
    for (std::int64_t r = 0; r < size; ++r) {
      groups_.push_back(make_transport_group(loopback_.transport(static_cast<int>(r)),
                                             {.size = size, .local = 1}, r));
    }
  }
  /// Runs one call of each rank to its end.
  void run(const std::function<CollectiveCall(std::int64_t rank)>& call_of) {
    std::vector<std::unique_ptr<streams::Task>> tasks;
    for (const auto& group : groups_) tasks.push_back(group->start(call_of(group->rank())));
    std::size_t left = tasks.size();
    while (left > 0) {
      const auto messages = loopback_.under_way();
      const std::size_t choice = random_() % (tasks.size() + messages.size());
      if (choice < tasks.size()) {
        auto& task = tasks[choice];
        if (!task || task->advance() != streams::Progress::done) continue;
        task.reset();
        --left;
      } else {
        const auto& m = messages[choice - tasks.size()];
        if (m.may_be_taken) {
          loopback_.take(m.message);
        } else if (m.may_be_delivered) {
          loopback_.deliver(m.message);
        }
      }
    }
    EXPECT_TRUE(loopback_.under_way().empty());
  }

 private:
  Loopback loopback_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<Group>> groups_;
};

/// Numbers whose sum depends on the order of additions.
std::vector<std::vector<float>> numbers_of(std::size_t ranks, std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> all(ranks, std::vector<float>(static_cast<std::size_t>(count)));
  for (auto& of_rank : all) {
    for (float& x : of_rank) x = normal(random);
  }
  return all;
}

class LoopbackGroups : public testing::TestWithParam<std::tuple<std::int64_t, Sends>> {
 protected:
  std::int64_t size_ = std::get<0>(GetParam());
  Sends sends_ = std::get<1>(GetParam());
  std::size_t ranks_ = static_cast<std::size_t>(size_);
};

/// Elements of a shard: fewer than a piece, and more pieces than are in flight at once.
constexpr std::array<std::int64_t, 2> kShards = {3, kPieceInter / 4 * (kPiecesInFlight + 1) + 1};

TEST_P(LoopbackGroups, GatherInAnyOrder) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    const std::int64_t n = kShards[seed % 2];
    auto own = numbers_of(ranks_, n, seed);
    std::vector<float> expected;
    for (const auto& shard : own) expected.insert(expected.end(), shard.begin(), shard.end());
    std::vector<std::vector<float>> full(ranks_, std::vector<float>(expected.size()));
    Ranks(size_, sends_, seed).run([&](std::int64_t rank) {
      const auto r = static_cast<std::size_t>(rank);
      return AllGather{.shard = view(own[r], 0, n), .full = view(full[r], 0, n * size_)};
    });
    for (const auto& theirs : full) EXPECT_TRUE(theirs == expected) << "seed " << seed;
  }
}

TEST_P(LoopbackGroups, ReduceInTheOrderOfTheTree) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    const std::int64_t n = kShards[seed % 2];
    auto full = numbers_of(ranks_, n * size_, seed), parts = full;
    std::vector<std::vector<float>> sums(ranks_, std::vector<float>(static_cast<std::size_t>(n)));
    auto staging = std::vector<std::vector<std::uint8_t>>(
        ranks_, std::vector<std::uint8_t>(static_cast<std::size_t>(
                    reduce_scatter_staging({.size = size_, .local = 1}, DType::f32))));
    Ranks(size_, sends_, seed).run([&](std::int64_t rank) {
      const auto r = static_cast<std::size_t>(rank);
      return ReduceScatter{
          .full = view(full[r], 0, n * size_),
          .shard = view(sums[r], 0, n),
          .staging = view(staging[r], 0, static_cast<std::int64_t>(staging[r].size()))};
    });
    std::vector<float> expected;
    for (std::size_t i = 0; std::ssize(expected) < n * size_; ++i) {
      expected.push_back(test::tree_order_sum(
          0, size_, [&](std::int64_t r) { return parts[static_cast<std::size_t>(r)][i]; }));
    }
    for (std::size_t r = 0; r < ranks_; ++r) {
      EXPECT_TRUE(std::equal(sums[r].begin(), sums[r].end(),
                             expected.begin() + static_cast<std::ptrdiff_t>(r) * n))
          << "rank " << r << ", seed " << seed;
    }
  }
}

// Ranks of one residue among themselves, as nodes do.
TEST_P(LoopbackGroups, ExchangeSlotsAmongSome) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    const std::int64_t bytes = 4 * kShards[seed % 2] + 1, parts = seed < 2 ? 1 : 2;
    const auto members = [&](std::int64_t rank) {
      const std::int64_t first = rank % parts;
      return RankGroup{
          .first = first, .count = (size_ - first + parts - 1) / parts, .stride = parts};
    };
    const auto byte = [&](std::int64_t from, std::int64_t to, std::int64_t i) {
      return static_cast<std::uint8_t>(from * 31 + to * 7 + i + i / 251);
    };
    using Bytes = std::vector<std::uint8_t>;
    std::vector<Bytes> send(ranks_), receive(ranks_);
    for (std::size_t r = 0; r < ranks_; ++r) {
      const RankGroup ranks = members(static_cast<std::int64_t>(r));
      for (std::int64_t i = 0; i < ranks.count * bytes; ++i)
        send[r].push_back(byte(static_cast<std::int64_t>(r), ranks.rank(i / bytes), i % bytes));
      receive[r].resize(send[r].size());
    }
    Ranks(size_, sends_, seed).run([&](std::int64_t rank) {
      const auto r = static_cast<std::size_t>(rank);
      const RankGroup ranks = members(rank);
      const auto slots = [&](Bytes& of) {
        return View(reinterpret_cast<std::byte*>(of.data()), DType::u8, {ranks.count, bytes});
      };
      return AllToAll{.send = slots(send[r]),
                      .receive = slots(receive[r]),
                      .ranks = ranks,
                      .remote = ranks.count - 1};
    });
    for (std::size_t r = 0; r < ranks_; ++r) {
      Bytes expected;
      const RankGroup ranks = members(static_cast<std::int64_t>(r));
      for (std::int64_t i = 0; i < ranks.count * bytes; ++i)
        expected.push_back(byte(ranks.rank(i / bytes), static_cast<std::int64_t>(r), i % bytes));
      EXPECT_TRUE(receive[r] == expected) << "rank " << r << ", seed " << seed;
    }
  }
}

// Of equal slots some rows are used, none of some; what lies behind them stays.
TEST_P(LoopbackGroups, ExchangeRowsThatAreUsed) {
  constexpr std::int64_t kSlot = 48, kColumns = 37, kExperts = 2;
  constexpr float kUntouched = -1;
  for (unsigned seed = 0; seed < 4; ++seed) {
    const auto used = [&](std::int64_t from, std::int64_t to) {
      return static_cast<std::int32_t>((3 * from + 5 * to + seed) % 4 * 16);
    };
    const auto value = [&](std::int64_t from, std::int64_t to, std::int64_t i) {
      return static_cast<float>(from * 1000003 + to * 7919 + i);
    };
    struct Rank {
      std::vector<float> send, receive, expected;
      std::vector<std::int32_t> send_begins, receive_begins;
    };
    std::vector<Rank> all(ranks_);
    for (std::int64_t own = 0; own < size_; ++own) {
      Rank& rank = all[static_cast<std::size_t>(own)];
      for (std::int64_t other = 0; other < size_; ++other) {
        for (std::int64_t i = 0; i < kSlot * kColumns; ++i) {
          rank.send.push_back(value(own, other, i));
          rank.receive.push_back(kUntouched);
          rank.expected.push_back(i < used(other, own) * kColumns ? value(other, own, i)
                                                                  : kUntouched);
        }
        rank.send_begins.insert(rank.send_begins.end(), {0, 16, used(own, other)});
        rank.receive_begins.insert(rank.receive_begins.end(), {0, 0, used(other, own)});
      }
    }
    Ranks(size_, sends_, seed).run([&](std::int64_t r) {
      Rank& rank = all[static_cast<std::size_t>(r)];
      const auto begins = [&](std::vector<std::int32_t>& of) {
        return View(reinterpret_cast<std::byte*>(of.data()), DType::i32, {size_, kExperts + 1});
      };
      const auto rows = [&](std::vector<float>& of) {
        return view(of, 0, std::ssize(of)).reshaped({size_ * kSlot, kColumns});
      };
      return ExchangeRows{.send = rows(rank.send),
                          .receive = rows(rank.receive),
                          .send_begins = begins(rank.send_begins),
                          .receive_begins = begins(rank.receive_begins)};
    });
    for (std::size_t r = 0; r < ranks_; ++r)
      EXPECT_TRUE(all[r].receive == all[r].expected) << "rank " << r << ", seed " << seed;
  }
}

// Every other rank, or every third: each takes part with those that leave the same.
TEST_P(LoopbackGroups, ExchangeRowsAmongSome) {
  constexpr std::int64_t kSlot = 16, kColumns = 5;
  for (const std::int64_t stride : {2, 3}) {
    if (size_ % stride != 0) continue;
    const std::int64_t among = size_ / stride;
    const auto value = [&](std::int64_t from, std::int64_t to, std::int64_t i) {
      return static_cast<float>(from * 1000003 + to * 7919 + i);
    };
    std::vector<std::vector<float>> send(ranks_), receive(ranks_), expected(ranks_);
    std::vector<std::vector<std::int32_t>> begins(ranks_);
    for (std::int64_t own = 0; own < size_; ++own) {
      const auto r = static_cast<std::size_t>(own);
      for (std::int64_t k = 0; k < among; ++k) {
        const std::int64_t other = own % stride + k * stride;
        for (std::int64_t i = 0; i < kSlot * kColumns; ++i) {
          send[r].push_back(value(own, other, i));
          expected[r].push_back(value(other, own, i));
        }
        begins[r].insert(begins[r].end(), {0, kSlot});
      }
      receive[r].resize(send[r].size());
    }
    Ranks(size_, sends_, 1).run([&](std::int64_t rank) {
      const auto r = static_cast<std::size_t>(rank);
      const View used(reinterpret_cast<std::byte*>(begins[r].data()), DType::i32,
                      {among, std::int64_t{2}});
      const auto rows = [&](std::vector<float>& of) {
        return view(of, 0, std::ssize(of)).reshaped({among * kSlot, kColumns});
      };
      return ExchangeRows{.send = rows(send[r]),
                          .receive = rows(receive[r]),
                          .send_begins = used,
                          .receive_begins = used,
                          .among = {.ranks = {rank % stride, among, stride}}};
    });
    EXPECT_TRUE(receive == expected) << "every " << stride;
  }
}

// Each rank sends each another number of elements, itself too, and some nothing.
TEST_P(LoopbackGroups, ExchangeRanges) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    const auto count = [&](std::int64_t from, std::int64_t to) {
      const std::int64_t some = (3 * from + 5 * to + seed) % 4;
      return some * some * kShards[seed % 2];
    };
    const auto value = [&](std::int64_t from, std::int64_t to, std::int64_t i) {
      return static_cast<float>(from * 1000003 + to * 7919 + i % 4093);
    };
    std::vector<std::vector<float>> send(ranks_), receive(ranks_), expected(ranks_);
    for (std::int64_t from = 0; from < size_; ++from) {
      for (std::int64_t to = 0; to < size_; ++to) {
        for (std::int64_t i = 0; i < count(from, to); ++i)
          send[static_cast<std::size_t>(from)].push_back(value(from, to, i));
        for (std::int64_t i = 0; i < count(to, from); ++i)
          expected[static_cast<std::size_t>(from)].push_back(value(to, from, i));
      }
    }
    Ranks(size_, sends_, seed).run([&](std::int64_t rank) {
      const auto r = static_cast<std::size_t>(rank);
      receive[r].resize(expected[r].size());
      const auto all = [&](std::vector<float>& v) {
        return v.empty() ? View() : view(v, 0, std::ssize(v));
      };
      AllToAllV call{.send = all(send[r]), .receive = all(receive[r])};
      for (std::int64_t other = 0; other < size_; ++other) {
        call.send_counts.push_back(count(rank, other));
        call.receive_counts.push_back(count(other, rank));
      }
      return call;
    });
    for (std::size_t r = 0; r < ranks_; ++r)
      EXPECT_TRUE(receive[r] == expected[r]) << "rank " << r << ", seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, LoopbackGroups,
                         testing::Combine(testing::Values(1, 2, 3, 4, 5),
                                          testing::Values(Sends::buffered, Sends::synchronous)));

TEST(LoopbackWords, AddUpExactlyOnAnyNumberOfRanks) {
  constexpr std::int64_t kWords = 52;
  for (unsigned seed = 0; seed < 120; ++seed) {
    const std::int64_t size = 1 + seed % 20;
    std::mt19937_64 random(seed);
    std::vector<std::vector<std::int64_t>> words(static_cast<std::size_t>(size));
    std::vector<std::uint64_t> sums(kWords);
    for (auto& of_rank : words) {
      for (auto& sum : sums)
        sum +=
            static_cast<std::uint64_t>(of_rank.emplace_back(static_cast<std::int64_t>(random())));
    }
    const std::vector<std::int64_t> expected(sums.begin(), sums.end());
    const Sends sends = seed % 3 == 0 ? Sends::synchronous : Sends::buffered;
    Ranks(size, sends, seed).run([&](std::int64_t rank) {
      return AllReduceWords{.words = view(words[static_cast<std::size_t>(rank)], 0, kWords)};
    });
    for (const auto& theirs : words) EXPECT_EQ(theirs, expected) << size << " ranks";
  }
}

TEST(LoopbackWords, AreTheLargestOfAnyNumberOfRanks) {
  constexpr std::int64_t kWords = 5;
  for (unsigned seed = 0; seed < 60; ++seed) {
    const std::int64_t size = 1 + seed % 20;
    std::mt19937_64 random(seed);
    std::vector<std::vector<std::int64_t>> words(static_cast<std::size_t>(size));
    std::vector<std::int64_t> largest(kWords, std::numeric_limits<std::int64_t>::min());
    for (auto& of_rank : words) {
      for (auto& most : largest)
        most = std::max(most, of_rank.emplace_back(static_cast<std::int64_t>(random())));
    }
    Ranks(size, Sends::buffered, seed).run([&](std::int64_t rank) {
      return AllReduceWords{.words = view(words[static_cast<std::size_t>(rank)], 0, kWords),
                            .of = AllReduceWords::Of::largest};
    });
    for (const auto& theirs : words) EXPECT_EQ(theirs, largest) << size << " ranks";
  }
}

struct Pair {
  std::unique_ptr<Transport> from, to;
  std::vector<std::byte> out = std::vector<std::byte>(8, std::byte{1});
  std::vector<std::byte> in = std::vector<std::byte>(8);
  explicit Pair(Loopback& loopback) : from(loopback.transport(0)), to(loopback.transport(1)) {}
};

TEST(Loopback, CompletesASendWhenItsMemoryIsFree) {
  for (const Sends sends : {Sends::buffered, Sends::synchronous}) {
    Loopback loopback(sends);
    Pair pair(loopback);
    Request sent = pair.from->send(1, pair.out.data(), 8);
    EXPECT_FALSE(pair.from->test(sent));
    EXPECT_EQ(loopback.under_way().at(0).may_be_taken, sends == Sends::buffered);
    Request awaited = pair.to->receive(0, pair.in.data(), 8);
    EXPECT_TRUE(loopback.under_way().at(0).may_be_taken);
    EXPECT_THROW(loopback.deliver({0, 1, 0}), InternalError);
    loopback.take({0, 1, 0});
    EXPECT_TRUE(pair.from->test(sent));
    EXPECT_FALSE(pair.to->test(awaited));
    loopback.deliver({0, 1, 0});
    EXPECT_TRUE(pair.to->test(awaited));
    EXPECT_EQ(pair.in, pair.out);
  }
}

TEST(Loopback, LeavesMemoryOfCancelledRequestsAlone) {
  Loopback loopback;
  Pair pair(loopback);
  const auto before = pair.in;
  Request sent = pair.from->send(1, pair.out.data(), 8);
  Request awaited = pair.to->receive(0, pair.in.data(), 8);
  pair.to->cancel(awaited);
  loopback.take({0, 1, 0});
  EXPECT_FALSE(loopback.under_way().at(0).may_be_delivered);
  Request cancelled = pair.from->send(1, pair.out.data(), 8);
  pair.from->cancel(cancelled);
  EXPECT_EQ(loopback.under_way().size(), 1U);
  EXPECT_TRUE(pair.from->test(sent));
  EXPECT_EQ(pair.in, before);
}

TEST(Loopback, RefusesAMessageOfAnotherSize) {
  Loopback loopback;
  Pair pair(loopback);
  Request sent = pair.from->send(1, pair.out.data(), 7);
  Request awaited = pair.to->receive(0, pair.in.data(), 8);
  loopback.take({0, 1, 0});
  loopback.deliver({0, 1, 0});
  EXPECT_TRUE(pair.from->test(sent));
  EXPECT_THROW(pair.to->test(awaited), CommError);
}

}  // namespace
}  // namespace tessera::comm
