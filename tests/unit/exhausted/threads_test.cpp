// Threads that the system does not give: exit code 4 with a message, and last words all the same.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>

#include "core/ending.hpp"
#include "core/thread.hpp"
#include "guard/watchdog.hpp"
#include "io/read_ahead.hpp"
#include "streams/background.hpp"
#include "streams/workers.hpp"
#include "support/failing_calls.hpp"

namespace tessera::test {
namespace {

using namespace std::chrono_literals;

/// Refuses threads while it lives.
class NoThreads {
 public:
  explicit NoThreads(std::int64_t first = 0) {
    refuse_thread({.first = first, .all_from_there = true});
  }
  ~NoThreads() { refuse_thread({}); }
};

TEST(Threads, OfEveryKindAreRefusedInOneWay) {
  const std::pair<const char*, std::function<void()>> kinds[] = {
      {"progress", [] { streams::BackgroundStreams streams; }},
      {"beside", [] { streams::Workers().start([] {}); }},
      {"read", [] { io::ReadAhead<int> items([](int&) { return false; }); }},
      {"team", [] { check_threads(2); }},
      {"worker", [] { in_turns(2, 2, [](std::size_t, std::size_t) {}); }}};
  for (const auto& [name, start] : kinds) {
    const NoThreads none;
    try {
      start();
      ADD_FAILURE() << name << " needs no thread";
    } catch (const MemoryError& e) {
      const std::string what = e.what();
      for (const char* words : {name, "ulimit -u", "pids.max", "run.threads"})
        EXPECT_NE(what.find(words), what.npos) << what;
    }
  }
}

TEST(Threads, WorkInTurnsEndsWhereverOneIsMissing) {
  for (int refused = 0; refused < 5; ++refused) {
    const NoThreads later(refused);
    std::atomic<int> done = 0;
    const auto work = [&](std::size_t, std::size_t) { ++done; };
    if (refused < 4) {
      EXPECT_THROW(in_turns(4, 100, work), MemoryError);
    } else {
      in_turns(4, 100, work);
      EXPECT_EQ(done, 100);
    }
  }
}

TEST(Threads, WorkInTurnsThrowsWhatItsWorkThrew) {
  EXPECT_THROW(in_turns(3, 10,
                        [](std::size_t, std::size_t i) {
                          if (i == 5) throw IoError("the sixth");
                        }),
               IoError);
}

TEST(Threads, AreCountedBeforeOpenMPTakesThem) {
  check_threads(-1);
  check_threads(0);
  check_threads(3);
  const NoThreads later(2);
  EXPECT_THROW(check_threads(3), MemoryError);
}

TEST(Threads, LastWordsNeedNone) {
  const NoThreads none;
  bool said = false;
  try_within_a_second([&] { said = true; });
  EXPECT_TRUE(said);
  EXPECT_NO_THROW(try_within_a_second([] { throw IoError("the disk is full"); }));
}

const std::vector<std::string> kLoopback{"127.0.0.1"};

TEST(Threads, WatchdogWithoutOneSaysSoBeforeItHasNeighbours) {
  guard::Watchdog watchdog(0);
  const NoThreads none;
  EXPECT_THROW(watchdog.listen(kLoopback), MemoryError);
  EXPECT_FALSE(watchdog.watching());
}

std::string read_line(int file) {
  std::string line;
  for (char c; ::read(file, &c, 1) == 1 && c != '\n';) line += c;
  return line;
}

void write_all(int file, const std::string& text) {
  EXPECT_EQ(::write(file, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

/// What becomes of a rank whose neighbour is killed when the system gives it no more of something.
struct Survivor {
  int code = -1;          // -1: a signal
  bool recorded = false;  // its report
};

Survivor lose_a_neighbour(const std::function<void()>& exhaust) {
  std::array<std::array<int, 2>, 2> to_parent{}, to_child{};
  std::array<int, 2> record{};
  for (auto* p : {&to_parent[0], &to_parent[1], &to_child[0], &to_child[1], &record})
    EXPECT_EQ(::pipe(p->data()), 0);
  const auto live = [&](int rank, const std::function<void()>& then) {
    const auto r = static_cast<std::size_t>(rank);
    guard::Watchdog watchdog(rank);
    write_all(to_parent[r][1], watchdog.listen(kLoopback) + "\n");
    const std::vector<std::string> endpoints{read_line(to_child[r][0]), read_line(to_child[r][0])};
    watchdog.join(endpoints, 1);
    watchdog.watch(
        {.hang_timeout = 60s, .record = [&](const std::string&) { write_all(record[1], "r"); }},
        [] { return guard::Activity{.doing = "a step that takes some time"}; });
    write_all(to_parent[r][1], "watching\n");
    read_line(to_child[r][0]);
    then();
    while (true) ::pause();
  };
  std::array<pid_t, 2> ranks{};
  for (std::size_t r = 0; r < 2; ++r) {
    ranks[r] = ::fork();
    if (ranks[r] != 0) continue;
    live(
        static_cast<int>(r), r == 0 ? exhaust : [] {});
  }
  std::string lines;
  for (const auto& from : to_parent) lines += read_line(from[0]) + "\n";
  for (const auto& to : to_child) write_all(to[1], lines);
  for (const auto& from : to_parent) EXPECT_EQ(read_line(from[0]), "watching");
  write_all(to_child[0][1], "go\n");
  std::this_thread::sleep_for(50ms);  // so that most often it is exhausted when it hears of it
  ::kill(ranks[1], SIGKILL);
  int status = 0;
  ::waitpid(ranks[1], &status, 0);
  ::waitpid(ranks[0], &status, 0);
  ::close(record[1]);
  char byte = 0;
  const bool recorded = ::read(record[0], &byte, 1) == 1;
  for (const auto* p : {&to_parent[0], &to_parent[1], &to_child[0], &to_child[1]}) {
    for (const int file : *p) ::close(file);
  }
  ::close(record[0]);
  return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1, .recorded = recorded};
}

TEST(Threads, RankThatLosesANeighbourLeavesWithoutOne) {
  const Survivor survivor =
      lose_a_neighbour([] { refuse_thread({.first = 0, .all_from_there = true}); });
  EXPECT_EQ(survivor.code, static_cast<int>(ExitCode::comm));
  EXPECT_TRUE(survivor.recorded);
}

// Wherever the watchdog's thread meets the end of memory: a code of ours, and no signal.
TEST(Allocations, RankThatLosesANeighbourLeavesWithoutAny) {
  for (const int first : {0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89}) {
    const Survivor survivor =
        lose_a_neighbour([=] { refuse_allocation({.first = first, .all_from_there = true}); });
    EXPECT_TRUE(survivor.code == static_cast<int>(ExitCode::comm) ||
                survivor.code == static_cast<int>(ExitCode::memory))
        << "after " << first << ": " << survivor.code;
  }
}

}  // namespace
}  // namespace tessera::test
