// Threads that the system does not give: exit code 4 with a message, and last words all the same.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "core/ending.hpp"
#include "core/thread.hpp"
#include "guard/watchdog.hpp"
#include "io/read_ahead.hpp"
#include "memory/background.hpp"
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
      {"progress", [] { memory::BackgroundStreams streams; }},
      {"beside", [] { memory::make_thread_task([] {}); }},
      {"read", [] { ReadAhead<int> items([](int&) { return false; }); }},
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
  const std::string own = watchdog.listen(kLoopback);
  const NoThreads none;
  EXPECT_THROW(watchdog.join(std::vector<std::string>{own, own}, 1), MemoryError);
  EXPECT_FALSE(watchdog.watching());
}

/// What becomes of a rank whose neighbour is killed when the system gives it no more of something.
struct Survivor {
  int code = -1;          // -1: a signal
  bool recorded = false;  // its report
};

Survivor lose_a_neighbour(const std::function<void()>& exhaust) {
  guard::Watchdog first(0), second(1);
  const std::vector<std::string> endpoints{first.listen(kLoopback), second.listen(kLoopback)};
  int record[2];
  EXPECT_EQ(::pipe(record), 0);
  const auto life = [&](guard::Watchdog& watchdog, const std::function<void()>& then) {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    ::close(record[0]);
    watchdog.join(endpoints, 1);
    watchdog.watch({.hang_timeout = 60s,
                    .record =
                        [&](const std::string&) {
                          [[maybe_unused]] const ssize_t n = ::write(record[1], "r", 1);
                        }},
                   [] { return guard::Activity{.doing = "a step that takes some time"}; });
    std::this_thread::sleep_for(200ms);  // both watch
    then();
    while (true) ::pause();
  };
  const pid_t killed = life(second, [] { std::raise(SIGKILL); });
  const pid_t left = life(first, exhaust);
  int status = 0;
  ::waitpid(killed, &status, 0);
  ::waitpid(left, &status, 0);
  ::close(record[1]);
  char byte = 0;
  const bool recorded = ::read(record[0], &byte, 1) == 1;
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
