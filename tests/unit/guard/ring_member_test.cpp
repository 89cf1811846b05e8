// Whole rings in simulated time, over a network that delays and cuts as TCP may, with ranks that
// are killed, stopped, stuck or fail: who leaves, with which code, when, and what the report says.
#include "guard/ring_member.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "support/sanitized.hpp"

namespace tessera::guard {
namespace {

using namespace std::chrono_literals;
using Phase = RingMember::Phase;

constexpr Milliseconds kTimeout = 2s;
constexpr auto kLongestDelay = 40ms;  // of a message, and of a process that has something to do

/// What becomes of one rank, and when.
struct Fate {
  enum class Kind : std::uint8_t { killed, stopped, stuck, fails };
  Kind kind = Kind::killed;
  int rank = 0;
  Milliseconds at{0};
  Milliseconds for_so_long{0};   // of stopped
  ExitCode code = ExitCode::ok;  // of fails
};

struct Ended {
  std::optional<ExitCode> code;  // nothing: it was killed, or never came to an end
  bool in_order = false;         // after goodbyes, without a code
  bool had_parted = false;
  Milliseconds at{0};
};

/// Ranks, and what is on its way between them. A process that ends with bytes unread resets its
/// connections: what it sent and its neighbours have not read yet may be lost.
class Simulation {
 public:
  Simulation(int size, std::uint64_t seed) : random_(seed), processes_(size_of(size)) {
    for (int r = 0; r < size; ++r) {
      Process& p = process(r);
      p.member = std::make_unique<RingMember>(
          r, size, kTimeout, [&p] { return p.activity; }, time());
    }
  }

  /// Ranks that live say goodbye at `end`, more or less.
  void run(const std::vector<Fate>& fates, Milliseconds end) {
    for (int r = 0; r < size(); ++r) process(r).parts_at = end + delay();
    while (now_ < end + 60s && any_alive()) {
      for (const Fate& f : fates) {
        if (f.at == now_) strike(f);
      }
      for (int r = 0; r < size(); ++r) step(r);
      now_ += 1ms;
    }
  }

  const Ended& ended(int rank) const { return processes_[size_of(rank)].ended; }
  /// Of ranks that wrote one.
  const std::vector<std::pair<int, PeerReport>>& reports() const { return reports_; }
  int size() const { return static_cast<int>(processes_.size()); }

 private:
  struct Packet {
    Milliseconds arrives;
    std::string bytes;  // empty: the connection's end
  };
  struct Process {
    std::unique_ptr<RingMember> member;
    Activity activity{.must_advance = true, .progress = 0, .doing = "step 1"};
    std::array<std::deque<Packet>, 2> inbox;  // by Side
    std::array<bool, 2> shut{};               // for writing
    Milliseconds wakes{0}, stopped_until{0}, parts_at{0};
    bool alive = true, stuck = false, published = false;
    Ended ended;
  };

  static std::size_t size_of(int n) { return static_cast<std::size_t>(n); }
  Process& process(int rank) { return processes_[size_of(rank)]; }
  Time time() const { return Time(now_); }
  Milliseconds delay() {
    return Milliseconds(random_() % static_cast<std::uint64_t>(kLongestDelay.count()));
  }
  bool any_alive() const {
    return std::ranges::any_of(processes_, [](const Process& p) { return p.alive; });
  }
  static Side other(Side side) { return side == Side::before ? Side::after : Side::before; }
  int neighbour(int rank, Side side) const {
    return (rank + (side == Side::after ? 1 : size() - 1)) % size();
  }
  std::deque<Packet>& inbox(int rank, Side side) {
    return process(rank).inbox[static_cast<std::size_t>(side)];
  }

  /// In order, in pieces.
  void send(int rank, Side side, std::string bytes) {
    auto& to = inbox(neighbour(rank, side), other(side));
    while (!bytes.empty()) {
      const std::size_t n = 1 + random_() % bytes.size();
      queue(to, bytes.substr(0, n));
      bytes.erase(0, n);
    }
  }
  void queue(std::deque<Packet>& to, std::string bytes) {
    const Milliseconds after = to.empty() ? Milliseconds(0) : to.back().arrives;
    to.push_back({std::max(after, now_ + delay()), std::move(bytes)});
  }

  void end(int rank, bool in_order) {
    Process& p = process(rank);
    p.alive = false;
    p.ended.code = p.member->exit_code();
    p.ended.in_order = in_order;
    p.ended.at = now_;
    for (const Side side : kSides) {
      auto& theirs = inbox(neighbour(rank, side), other(side));
      auto& own = inbox(rank, side);
      const bool unread =
          std::ranges::any_of(own, [](const Packet& m) { return !m.bytes.empty(); });
      if (unread && random_() % 2 == 0) theirs.clear();
      own.clear();
      if (!p.shut[static_cast<std::size_t>(side)] || theirs.empty()) queue(theirs, "");
    }
  }

  void strike(const Fate& f) {
    Process& p = process(f.rank);
    if (!p.alive) return;
    switch (f.kind) {
      case Fate::Kind::killed:
        end(f.rank, false);
        p.ended.code.reset();
        return;
      case Fate::Kind::stopped: p.stopped_until = now_ + f.for_so_long; return;
      case Fate::Kind::stuck: p.stuck = true; return;
      case Fate::Kind::fails:
        if (p.member->phase() != Phase::watching) return;  // its run is over
        p.member->fail(f.code, "its own reason");
        p.parts_at = Milliseconds::max();
        return;
    }
  }

  /// What the watchdog's thread does when it wakes: as guard/watchdog has it.
  void step(int rank) {
    Process& p = process(rank);
    if (!p.alive || now_ < p.stopped_until) return;
    if (!p.stuck) p.activity.progress = static_cast<std::uint64_t>(now_.count());
    RingMember& m = *p.member;
    const auto has_arrived = [&](Side side) {
      const auto& in = inbox(rank, side);
      return !in.empty() && in.front().arrives <= now_;
    };
    const bool news = has_arrived(Side::before) || has_arrived(Side::after);
    if (!news && now_ < p.wakes && now_ != p.parts_at) return;
    if (random_() % 4 == 0) return;  // it is scheduled a little later
    for (const Side side : kSides) {
      while (has_arrived(side)) {
        const Packet packet = std::move(inbox(rank, side).front());
        inbox(rank, side).pop_front();
        if (!m.is_open(side)) continue;
        packet.bytes.empty() ? m.closed(side, time()) : m.receive(side, packet.bytes, time());
      }
    }
    if (now_ >= p.parts_at && !p.stuck) {
      if (m.phase() == Phase::watching) p.ended.had_parted = true;
      m.part();
    }
    m.advance(time());
    for (const Side side : kSides) {
      bool& shut = p.shut[static_cast<std::size_t>(side)];
      EXPECT_TRUE(!shut || m.unsent(side).empty()) << "rank " << rank << " has more to say";
      if (m.is_open(side)) send(rank, side, std::exchange(m.unsent(side), {}));
      if (m.is_draining() && !std::exchange(shut, true))
        queue(inbox(neighbour(rank, side), other(side)), "");
    }
    if (m.phase() == Phase::leaving && !std::exchange(p.published, true) && m.reports())
      reports_.emplace_back(rank, m.report());
    p.wakes = now_ + m.rest();
    if (m.phase() == Phase::gone) end(rank, !m.exit_code());
  }

  std::mt19937_64 random_;
  Milliseconds now_{0};
  std::vector<Process> processes_;
  std::vector<std::pair<int, PeerReport>> reports_;
};

constexpr int kSeeds = test::kSanitized ? 100 : 300;
constexpr Milliseconds kEnd = 20s;
/// From a rank's end until the last that hears of it has left: the news go round the ring, which is
/// waited for 300 ms, and bytes are read for 500 ms at most.
Milliseconds news_round(int size) { return size * 2 * kLongestDelay + 300ms + 500ms + 100ms; }

int random_size(std::mt19937_64& random) { return 2 + static_cast<int>(random() % 7); }
int random_rank(std::mt19937_64& random, const Simulation& s) {
  return static_cast<int>(random() % static_cast<std::uint64_t>(s.size()));
}
Milliseconds random_moment(std::mt19937_64& random) { return 1s + Milliseconds(random() % 10000); }

/// Runs `test` with rings of random sizes, one for each seed.
void for_seeds(std::uint64_t count,
               const std::function<void(Simulation& s, std::mt19937_64& random)>& test) {
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    Simulation s(random_size(random), seed);
    test(s, random);
  }
}

TEST(RingMember, AHealthyRingEndsInOrderWhateverTheNetworkDoes) {
  for_seeds(kSeeds, [&](Simulation& s, std::mt19937_64&) {
    s.run({}, 3s);
    for (int r = 0; r < s.size(); ++r) {
      EXPECT_TRUE(s.ended(r).in_order) << "rank " << r;
      EXPECT_LT(s.ended(r).at, 4s);
    }
    EXPECT_TRUE(s.reports().empty());
  });
}

TEST(RingMember, OfAKilledRankAllOthersSaySoAndLeaveWithCode5) {
  for_seeds(kSeeds, [&](Simulation& s, std::mt19937_64& random) {
    const int lost = random_rank(random, s);
    const Milliseconds at = random_moment(random);
    s.run({{.kind = Fate::Kind::killed, .rank = lost, .at = at}}, kEnd);
    for (int r = 0; r < s.size(); ++r) {
      if (r == lost) continue;
      EXPECT_EQ(s.ended(r).code, ExitCode::comm) << "rank " << r;
      EXPECT_LT(s.ended(r).at, at + news_round(s.size())) << "rank " << r;
    }
    ASSERT_EQ(s.reports().size(), 1U);
    const auto& [who, report] = s.reports()[0];
    EXPECT_EQ(who, lost == 0 ? 1 : 0);
    ASSERT_EQ(report.casualties.size(), 1U);
    EXPECT_EQ(report.casualties.begin()->first, lost);
    EXPECT_NE(report.casualties.begin()->second.find("connection closed"), std::string::npos);
    EXPECT_EQ(report.bystanders.size(), size_t(s.size() - 1));
  });
}

TEST(RingMember, ARankStoppedForLessThanTheTimeoutIsNotMissed) {
  for_seeds(kSeeds, [&](Simulation& s, std::mt19937_64& random) {
    const Fate stop{.kind = Fate::Kind::stopped,
                    .rank = random_rank(random, s),
                    .at = random_moment(random),
                    .for_so_long = Milliseconds(random() % size_t((kTimeout - 500ms).count()))};
    s.run({stop}, kEnd);
    for (int r = 0; r < s.size(); ++r) EXPECT_TRUE(s.ended(r).in_order) << "rank " << r;
  });
}

TEST(RingMember, AJobThatWasStoppedAsAWholeGoesOn) {
  for_seeds(kSeeds, [&](Simulation& s, std::mt19937_64& random) {
    const Milliseconds at = random_moment(random);
    std::vector<Fate> fates;
    for (int r = 0; r < s.size(); ++r) {
      fates.push_back({.kind = Fate::Kind::stopped,
                       .rank = r,
                       .at = at + Milliseconds(random() % 50),
                       .for_so_long = 2 * kTimeout + Milliseconds(random() % 50)});
    }
    s.run(fates, kEnd);
    for (int r = 0; r < s.size(); ++r) EXPECT_TRUE(s.ended(r).in_order) << "rank " << r;
  });
}

TEST(RingMember, ARankStoppedForLongerIsSilentAndTheOthersLeave) {
  for_seeds(kSeeds, [&](Simulation& s, std::mt19937_64& random) {
    const int silent = random_rank(random, s);
    const Milliseconds at = random_moment(random);
    const Milliseconds asleep = kTimeout + 5s;
    s.run({{.kind = Fate::Kind::stopped, .rank = silent, .at = at, .for_so_long = asleep}}, kEnd);
    for (int r = 0; r < s.size(); ++r) {
      EXPECT_EQ(s.ended(r).code, ExitCode::comm) << "rank " << r;  // it too, once it wakes
      EXPECT_LT(s.ended(r).at,
                at + (r == silent ? asleep : kTimeout + 500ms) + news_round(s.size()));
    }
    ASSERT_GE(s.reports().size(), 1U);
    const auto& casualties = s.reports()[0].second.casualties;
    ASSERT_EQ(casualties.size(), 1U);
    EXPECT_EQ(casualties.begin()->first, silent);
    EXPECT_NE(casualties.begin()->second.find("silent for 2 s"), std::string::npos);
  });
}

TEST(RingMember, ARankWithoutProgressSaysSoItself) {
  for_seeds(kSeeds, [&](Simulation& s, std::mt19937_64& random) {
    const int stuck = random_rank(random, s);
    const Milliseconds at = random_moment(random);
    s.run({{.kind = Fate::Kind::stuck, .rank = stuck, .at = at}}, kEnd);
    for (int r = 0; r < s.size(); ++r) {
      EXPECT_EQ(s.ended(r).code, ExitCode::comm) << "rank " << r;
      EXPECT_LT(s.ended(r).at, at + kTimeout + 500ms + news_round(s.size())) << "rank " << r;
    }
    ASSERT_GE(s.reports().size(), 1U);
    for (const auto& [who, report] : s.reports()) {
      ASSERT_TRUE(report.casualties.contains(stuck));
      EXPECT_NE(report.casualties.at(stuck).find("no progress for 2 s"), std::string::npos);
    }
  });
}

TEST(RingMember, ARankThatFailsAloneLeavesWithItsCodeAndTheOthersKnowWhy) {
  for_seeds(kSeeds, [&](Simulation& s, std::mt19937_64& random) {
    const Fate f{.kind = Fate::Kind::fails,
                 .rank = random_rank(random, s),
                 .at = random_moment(random),
                 .code = ExitCode::io};
    s.run({f}, kEnd);
    for (int r = 0; r < s.size(); ++r) {
      EXPECT_EQ(s.ended(r).code, r == f.rank ? ExitCode::io : ExitCode::comm) << "rank " << r;
      EXPECT_LT(s.ended(r).at, f.at + 250ms + news_round(s.size())) << "rank " << r;
    }
    ASSERT_EQ(s.reports().size(), 1U);
    EXPECT_EQ(s.reports()[0].second.casualties.at(f.rank), "left with exit code 7: its own reason");
  });
}

// A collective that fails on all others is the echo of the one that was killed.
TEST(RingMember, ErrorsOfCommunicationThatFollowADeathAreNotBlamed) {
  for_seeds(kSeeds, [&](Simulation& s, std::mt19937_64& random) {
    const int lost = random_rank(random, s);
    const Milliseconds at = random_moment(random);
    std::vector<Fate> fates{{.kind = Fate::Kind::killed, .rank = lost, .at = at}};
    for (int r = 0; r < s.size(); ++r) {
      if (r == lost) continue;
      fates.push_back({.kind = Fate::Kind::fails,
                       .rank = r,
                       .at = at + Milliseconds(random() % 200),
                       .code = ExitCode::comm});
    }
    s.run(fates, kEnd);
    for (int r = 0; r < s.size(); ++r) {
      if (r == lost) continue;
      EXPECT_EQ(s.ended(r).code, ExitCode::comm) << "rank " << r;
    }
    ASSERT_EQ(s.reports().size(), 1U);
    ASSERT_EQ(s.reports()[0].second.casualties.size(), 1U);
    EXPECT_TRUE(s.reports()[0].second.casualties.contains(lost));
  });
}

// Ranks that have said goodbye come to MPI's end together, which one that fails then never comes
// to. Who hears of it while it parts leaves too; others may have ended in order.
TEST(RingMember, ARankThatFailsWhileOthersPartIsSaidOrOver) {
  int said = 0;
  for_seeds(3 * kSeeds, [&](Simulation& s, std::mt19937_64& random) {
    const int rank = random_rank(random, s);
    const Milliseconds at = kEnd - 30ms + Milliseconds(random() % 60);
    const bool is_killed = random() % 2 == 0;
    s.run({{.kind = is_killed ? Fate::Kind::killed : Fate::Kind::fails,
            .rank = rank,
            .at = at,
            .code = ExitCode::io}},
          kEnd);
    for (int r = 0; r < s.size(); ++r) {
      const Ended& e = s.ended(r);
      EXPECT_LT(e.at, kEnd + 5s + news_round(s.size())) << "rank " << r;
      if (r == rank) {
        EXPECT_TRUE(is_killed || e.in_order || e.code == ExitCode::io) << "rank " << r;
      } else {
        EXPECT_TRUE(e.in_order || e.code == ExitCode::comm) << "rank " << r;
        if (e.had_parted && e.code == ExitCode::comm) ++said;
      }
    }
  });
  EXPECT_GT(said, 0);
}

// Whatever happens to however many: nobody stays, and nobody ends in order while a rank that did
// not was known of. One of those that were there to the end writes a report.
TEST(RingMember, NobodyStaysWhateverBecomesOfHoweverMany) {
  for_seeds(3 * kSeeds, [&](Simulation& s, std::mt19937_64& random) {
    std::vector<Fate> fates;
    std::vector<bool> struck(size_t(s.size())), killed(size_t(s.size()));
    for (std::uint64_t i = 0; i <= random() % 3; ++i) {
      const int rank = random_rank(random, s);
      fates.push_back({.kind = static_cast<Fate::Kind>(random() % 4),
                       .rank = rank,
                       .at = random_moment(random),
                       .for_so_long = 4s,
                       .code = random() % 2 == 0 ? ExitCode::io : ExitCode::comm});
      struck[size_t(rank)] = true;
      if (fates.back().kind == Fate::Kind::killed) killed[size_t(rank)] = true;
    }
    s.run(fates, kEnd);
    bool a_survivor = false;
    for (int r = 0; r < s.size(); ++r) {
      if (struck[size_t(r)]) {
        const Ended& e = s.ended(r);
        EXPECT_TRUE(killed[size_t(r)] || e.code == ExitCode::comm || e.code == ExitCode::io)
            << "rank " << r << " stays";
        continue;
      }
      a_survivor = true;
      EXPECT_EQ(s.ended(r).code, ExitCode::comm) << "rank " << r;
    }
    if (!a_survivor) return;
    EXPECT_GE(s.reports().size(), 1U);
  });
}

}  // namespace
}  // namespace tessera::guard
