// Rings of real processes: one is killed, stopped or fails, and the others must say so and leave.
#include "guard/watchdog.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <vector>

#include "guard/socket.hpp"

namespace tessera::guard {
namespace {

using namespace std::chrono_literals;

struct Outcome {
  std::vector<int> status;  // by rank, as waitpid gives it
  std::string report;       // what all of them wrote to stderr
};

/// What a rank does once the ring is closed; it returns to say goodbye and exit with 0, and throws
/// to exit with 70.
using Life = std::function<void(int rank, Watchdog& watchdog)>;

/// What a rank's own step does, as its watchdog sees it.
enum class Step { advances, hangs, is_none };

void write_all(int file, const std::string& text) {
  EXPECT_EQ(write(file, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

int count(const std::string& text, const std::string& what) {
  int found = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

/// `meanwhile` is called with all ranks' lines while they listen and before they connect; a rank
/// begins to connect only after its `lateness`.
struct Start {
  std::function<void(const std::vector<std::string>& lines)> meanwhile = [](const auto&) {};
  std::function<std::chrono::milliseconds(int rank)> lateness = [](int) { return 0ms; };
};

class Ring {
 public:
  using Record = std::function<void(const std::string&)>;

  Ring(int size, std::chrono::milliseconds hang_timeout, const Life& life,
       Step step = Step::advances, const Record& record = {}, const Start& start = {})
      : start_(start), to_children_(static_cast<std::size_t>(size)) {
    EXPECT_EQ(pipe(endpoints_), 0);
    EXPECT_EQ(pipe(stderr_), 0);
    for (auto& p : to_children_) EXPECT_EQ(pipe(p.data()), 0);
    for (int rank = 0; rank < size; ++rank) {
      const pid_t pid = fork();
      if (pid == 0)
        run_rank(rank, size, {.hang_timeout = hang_timeout, .record = record}, life, step);
      pids_.push_back(pid);
    }
    close(endpoints_[1]);  // so that reading ends when all ranks have
    std::vector<std::string> lines(static_cast<std::size_t>(size));
    for (int i = 0; i < size; ++i) {
      const std::string line = read_line(endpoints_[0]);
      lines[static_cast<std::size_t>(std::stoi(line))] = line.substr(line.find(' ') + 1);
    }
    start_.meanwhile(lines);
    std::string all;
    for (const auto& line : lines) all += line + "\n";
    for (auto& p : to_children_) write_all(p[1], all);
    for (const char* word : {"joined", "watching"}) {
      for (int i = 0; i < size; ++i) EXPECT_EQ(read_line(endpoints_[0]), word);
      for (auto& p : to_children_) write_all(p[1], "go\n");
    }
  }

  pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }

  /// Waits for all ranks but the stopped one.
  Outcome join(int stopped = -1) {
    Outcome outcome;
    outcome.status.resize(pids_.size(), -1);
    for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
      if (static_cast<int>(rank) == stopped) continue;
      waitpid(pids_[rank], &outcome.status[rank], 0);
    }
    if (stopped >= 0) {
      kill(pid(stopped), SIGCONT);
      waitpid(pid(stopped), &outcome.status[static_cast<std::size_t>(stopped)], 0);
    }
    close(stderr_[1]);
    char buffer[4096];
    for (ssize_t n; (n = read(stderr_[0], buffer, sizeof buffer)) > 0;) {
      outcome.report.append(buffer, static_cast<std::size_t>(n));
    }
    return outcome;
  }

 private:
  static std::string read_line(int file) {
    std::string line;
    for (char c; read(file, &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }

  [[noreturn]] void run_rank(int rank, int size, const WatchdogOptions& options, const Life& life,
                             Step step) {
    dup2(stderr_[1], STDERR_FILENO);
    close(stderr_[1]);
    const int from_parent = to_children_[static_cast<std::size_t>(rank)][0];
    try {
      Watchdog watchdog(rank);
      write_all(endpoints_[1], fmt::format("{} {}\n", rank, watchdog.listen(kLoopback)));
      std::vector<std::string> lines;
      for (int i = 0; i < size; ++i) {
        lines.push_back(read_line(from_parent));
      }
      std::this_thread::sleep_for(start_.lateness(rank));
      watchdog.join(lines, 12345);
      write_all(endpoints_[1], "joined\n");
      read_line(from_parent);
      watchdog.watch(options, [rank, step, progress = std::uint64_t{0}]() mutable {
        return Activity{.must_advance = step != Step::is_none,
                        .progress = step == Step::advances ? ++progress : 0,
                        .doing = fmt::format("step {}", rank < 2 ? 7 : 8)};
      });
      write_all(endpoints_[1], "watching\n");
      read_line(from_parent);
      life(rank, watchdog);
    } catch (const Error& e) {
      write_all(STDERR_FILENO, fmt::format("rank {}: {}\n", rank, e.what()));
      _exit(static_cast<int>(e.exit_code()));
    }
    _exit(0);
  }

  const std::vector<std::string> kLoopback{"127.0.0.1"};
  Start start_;
  int endpoints_[2], stderr_[2];
  std::vector<std::array<int, 2>> to_children_;
  std::vector<pid_t> pids_;
};

void sleep_long(int, Watchdog&) { std::this_thread::sleep_for(60s); }

bool left_with(int status, int code) { return WIFEXITED(status) && WEXITSTATUS(status) == code; }

TEST(Watchdog, KilledRankIsNamedAndTheOthersLeave) {
  for (int size : {2, 3, 5}) {
    Ring ring(size, 60s, sleep_long);
    kill(ring.pid(1), SIGKILL);
    const Outcome outcome = ring.join();
    for (int rank = 0; rank < size; ++rank) {
      if (rank == 1) continue;
      EXPECT_TRUE(left_with(outcome.status[static_cast<std::size_t>(rank)], 5));
    }
    EXPECT_NE(outcome.report.find("rank 1 is lost: its connection closed"), std::string::npos)
        << outcome.report;
    // One report, by one rank, with what every survivor was doing.
    EXPECT_EQ(count(outcome.report, " is lost"), 1) << outcome.report;
    EXPECT_NE(outcome.report.find("rank 0 leaves (exit code 5) from step 7"), std::string::npos)
        << outcome.report;
    if (size == 5) {
      EXPECT_NE(outcome.report.find("ranks 2-4 leave (exit code 5) from step 8"), std::string::npos)
          << outcome.report;
    }
  }
}

TEST(Watchdog, TwoKilledRanksSplitTheRingAndBothPartsLeave) {
  Ring ring(6, 60s, sleep_long);
  kill(ring.pid(1), SIGSTOP);  // so that both are gone before anyone can pass news on through them
  kill(ring.pid(4), SIGKILL);
  kill(ring.pid(1), SIGKILL);
  const Outcome outcome = ring.join();
  for (std::size_t rank : {0U, 2U, 3U, 5U}) EXPECT_TRUE(left_with(outcome.status[rank], 5)) << rank;
}

TEST(Watchdog, StoppedRankIsFoundAfterTheTimeoutAndLeavesWhenItWakes) {
  Ring ring(4, 400ms, sleep_long);
  kill(ring.pid(2), SIGSTOP);
  const Outcome outcome = ring.join(2);
  for (int status : outcome.status) EXPECT_TRUE(left_with(status, 5)) << status;
  EXPECT_NE(outcome.report.find("rank 2 is lost: silent for"), std::string::npos) << outcome.report;
}

/// Of a Start: forty connections that say nothing, and forty that say something else, at each rank.
void knock(const std::vector<std::string>& lines, std::vector<Socket>& strangers) {
  for (const std::string& line : lines) {
    const Endpoint::Port port = Endpoint::from_text(line).ports.at(0);
    for (int i = 0; i < 80; ++i) {
      Socket& socket = strangers.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<std::uint16_t>(port.number));
      inet_pton(AF_INET, port.address.c_str(), &address.sin_addr);
      ASSERT_EQ(::connect(socket.descriptor(), reinterpret_cast<const sockaddr*>(&address),
                          sizeof address),
                0);
      if (i % 2 == 1) {
        ASSERT_EQ(::send(socket.descriptor(), "noise", 5, MSG_NOSIGNAL), 5);
      }
    }
  }
}

// One after the other they would take longer than a rank waits for its neighbours.
TEST(Watchdog, StrangersDoNotHinderTheStart) {
  std::vector<Socket> strangers;
  Ring ring(3, 60s, [](int, Watchdog&) {}, Step::advances, {},
            {.meanwhile = [&](const auto& lines) { knock(lines, strangers); }});
  const Outcome outcome = ring.join();
  for (int status : outcome.status) EXPECT_TRUE(left_with(status, 0)) << status;
  EXPECT_EQ(outcome.report, "");
}

TEST(Watchdog, RankThatJoinsLateIsNotSilent) {
  std::vector<Socket> strangers;
  Ring ring(3, 400ms, [](int, Watchdog&) { std::this_thread::sleep_for(1s); }, Step::advances, {},
            {.meanwhile = [&](const auto& lines) { knock(lines, strangers); },
             .lateness = [](int rank) { return rank == 1 ? 2500ms : 0ms; }});
  const Outcome outcome = ring.join();
  for (int status : outcome.status) EXPECT_TRUE(left_with(status, 0)) << status;
  EXPECT_EQ(outcome.report, "");
}

TEST(Watchdog, NobodyListensOnceTheRingIsClosed) {
  std::vector<std::string> heard;
  Ring ring(2, 60s, [](int, Watchdog&) { std::this_thread::sleep_for(1s); }, Step::advances, {},
            {.meanwhile = [&](const auto& lines) { heard = lines; }});
  for (const std::string& line : heard) {
    const Endpoint::Port port = Endpoint::from_text(line).ports.at(0);
    EXPECT_EQ(port.address, "127.0.0.1");
    EXPECT_THROW(connect_to({.ports = {port}}, {.secret = 1, .from = 0, .to = 1},
                            std::chrono::steady_clock::now() + 100ms),
                 CommError);
    EXPECT_EQ(
        std::system(
            fmt::format("grep -qi ':{:04X} 00000000:0000 0A' /proc/net/tcp", port.number).c_str()),
        256)
        << line;
  }
  for (int status : ring.join().status) EXPECT_TRUE(left_with(status, 0)) << status;
}

TEST(Watchdog, RankThatFailsAloneSaysWhy) {
  Ring ring(3, 60s, [](int rank, Watchdog& watchdog) {
    if (rank == 1) watchdog.leave(ExitCode::io, "disk /scratch: no space left");
    std::this_thread::sleep_for(60s);
  });
  const Outcome outcome = ring.join();
  EXPECT_TRUE(left_with(outcome.status[0], 5));
  EXPECT_TRUE(left_with(outcome.status[1], 7));
  EXPECT_TRUE(left_with(outcome.status[2], 5));
  EXPECT_NE(
      outcome.report.find("rank 1 is lost: left with exit code 7: disk /scratch: no space left"),
      std::string::npos)
      << outcome.report;
}

TEST(Watchdog, CommunicationErrorIsTheEchoOfADeath) {
  Ring ring(3, 60s, [](int rank, Watchdog& watchdog) {
    if (rank == 2) watchdog.leave(ExitCode::comm, "MPI_Test failed");
    std::this_thread::sleep_for(200ms);
    if (rank == 1) raise(SIGKILL);
    std::this_thread::sleep_for(60s);
  });
  const Outcome outcome = ring.join();
  EXPECT_TRUE(left_with(outcome.status[0], 5));
  EXPECT_TRUE(left_with(outcome.status[2], 5));
  EXPECT_NE(outcome.report.find("rank 1 is lost"), std::string::npos) << outcome.report;
  EXPECT_EQ(outcome.report.find("rank 2 is lost"), std::string::npos) << outcome.report;
}

TEST(Watchdog, GoodbyeIsNoCasualtyHoweverLateTheOthersAre) {
  for (int size : {2, 3, 4}) {
    for (int first = 0; first < size; ++first) {
      Ring ring(size, 60s, [=](int rank, Watchdog&) {
        std::this_thread::sleep_for((rank + size - first) % size * 60ms);
      });
      const Outcome outcome = ring.join();
      for (int status : outcome.status) EXPECT_TRUE(left_with(status, 0)) << status;
      EXPECT_EQ(outcome.report, "");
    }
  }
}

TEST(Watchdog, RankWithoutProgressReportsItself) {
  Ring ring(2, 300ms, sleep_long, Step::hangs);
  const Outcome outcome = ring.join();
  for (int status : outcome.status) EXPECT_TRUE(left_with(status, 5)) << status;
  EXPECT_NE(outcome.report.find("no progress for"), std::string::npos) << outcome.report;
}

TEST(Watchdog, LongLifeWithProgressOrOutsideOfStepsIsNoHang) {
  for (Step step : {Step::advances, Step::is_none}) {
    Ring ring(
        2, 1s, [](int, Watchdog&) { std::this_thread::sleep_for(2500ms); }, step);
    const Outcome outcome = ring.join();
    for (int status : outcome.status) EXPECT_TRUE(left_with(status, 0)) << status;
    EXPECT_EQ(outcome.report, "");
  }
}

// As when a job is suspended: whoever wakes has neither seen the others nor got on itself.
TEST(Watchdog, JobThatWasStoppedAsAWholeGoesOn) {
  Ring ring(
      3, 2s,
      [](int, Watchdog&) {
        raise(SIGSTOP);
        std::this_thread::sleep_for(50ms);  // the watchdog looks around
      },
      Step::hangs);
  for (int rank = 0; rank < 3; ++rank) {
    int status = 0;
    ASSERT_EQ(waitpid(ring.pid(rank), &status, WUNTRACED), ring.pid(rank));
    ASSERT_TRUE(WIFSTOPPED(status)) << status;
  }
  std::this_thread::sleep_for(2500ms);
  for (int rank = 0; rank < 3; ++rank) kill(ring.pid(rank), SIGCONT);
  const Outcome outcome = ring.join();
  for (int status : outcome.status) EXPECT_TRUE(left_with(status, 0)) << status;
  EXPECT_EQ(outcome.report, "");
}

TEST(Watchdog, RankThatEndsByAnExceptionSaysNoGoodbye) {
  Ring ring(3, 60s, [](int rank, Watchdog& watchdog) {
    if (rank == 1) throw InternalError("a bug");
    sleep_long(rank, watchdog);
  });
  const Outcome outcome = ring.join();
  EXPECT_TRUE(left_with(outcome.status[0], 5));
  EXPECT_TRUE(left_with(outcome.status[1], 70));
  EXPECT_TRUE(left_with(outcome.status[2], 5));
  EXPECT_NE(outcome.report.find("rank 1 is lost: its connection closed"), std::string::npos)
      << outcome.report;
}

// Longer than one read of the socket, and than any text that is sent.
TEST(Watchdog, LongReasonArrivesCut) {
  Ring ring(3, 60s, [](int rank, Watchdog& watchdog) {
    if (rank == 1) watchdog.leave(ExitCode::io, std::string(10'000, 'x'));
    sleep_long(rank, watchdog);
  });
  const Outcome outcome = ring.join();
  const std::string prefix = "left with exit code 7: ";
  const std::string cut = prefix + std::string(4096 - prefix.size(), 'x');
  EXPECT_NE(outcome.report.find("rank 1 is lost: " + cut + "\n"), std::string::npos)
      << outcome.report;
}

TEST(Watchdog, ReportIsKeptByOneRank) {
  Ring ring(3, 60s, sleep_long, Step::advances,
            [](const std::string& report) { write_all(STDERR_FILENO, "kept: " + report); });
  kill(ring.pid(2), SIGKILL);
  const Outcome outcome = ring.join();
  EXPECT_EQ(count(outcome.report, "kept: tessera: rank 2 is lost"), 1) << outcome.report;
}

TEST(Watchdog, ReportThatCannotBeKeptHoldsNobody) {
  Ring ring(2, 60s, sleep_long, Step::advances, [](const std::string&) {
    while (true) pause();
  });
  kill(ring.pid(1), SIGKILL);
  EXPECT_TRUE(left_with(ring.join().status[0], 5));
}

TEST(Watchdog, SignalsAreNotDeliveredToItsThread) {  // trap 61
  Ring ring(2, 60s, [](int, Watchdog&) {
    sigset_t usual;
    pthread_sigmask(SIG_SETMASK, nullptr, &usual);
    if (sigismember(&usual, SIGTERM) != 0) throw InternalError("the rank's own are blocked");
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name, line;
      std::ifstream(task.path() / "comm") >> name;
      std::ifstream status(task.path() / "status");
      while (std::getline(status, line) && !line.starts_with("SigBlk:")) {
      }
      const std::uint64_t blocked = std::stoull(line.substr(line.find('\t')), nullptr, 16);
      if (name == "watchdog" && (blocked >> (SIGTERM - 1) & 1) != 0) return;
    }
    throw InternalError("no thread \"watchdog\" that blocks SIGTERM");
  });
  for (int status : ring.join().status) EXPECT_TRUE(left_with(status, 0)) << status;
}

}  // namespace
}  // namespace tessera::guard
