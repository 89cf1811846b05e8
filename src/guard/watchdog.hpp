// Dead and stuck peers, found without MPI's help: a thread of each rank keeps connections of its
// own to the ranks before and after it, in a ring.
//
// A connection that closes without a goodbye means a dead rank; one that is silent for the hang
// timeout, a stopped one (or a node out of reach); and a rank whose own step makes no progress for
// that long says so itself. Whoever learns of it passes the news on along the ring, away from where
// it came from, followed by what it was doing itself, and leaves with exit code 5. The lowest rank
// that still hears the others writes the report.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "core/error.hpp"
#include "guard/ring_member.hpp"

namespace tessera::guard {

struct WatchdogOptions {
  std::chrono::milliseconds hang_timeout{0};  // > 0
  /// Keeps the report, which stderr gets anyway. Called on a thread of its own and waited for a
  /// second at most: the file system may be what hangs.
  std::function<void(const std::string& report)> record;
};

class Watchdog {
 public:
  explicit Watchdog(int rank);
  /// Says goodbye to the neighbours, unless an exception is on its way that they do not know of:
  /// then the closed connection tells them.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Opens ports on these addresses of this host, to which the rank before will connect, and starts
  /// a thread that waits there. Returns one line: what join() of every rank needs to know of this
  /// one. Throws CommError, and MemoryError if there is no thread to be had. (Refused now, because
  /// after join() a neighbour would be kept waiting.)
  std::string listen(std::span<const std::string> addresses);
  /// Joins the ring, and closes the ports. `endpoints`: every rank's line, in rank order; `secret`:
  /// a number that all ranks share and no stranger knows. Collective, over at least two ranks.
  /// Throws CommError when a neighbour cannot be reached on any of its addresses.
  void join(std::span<const std::string> endpoints, std::uint64_t secret);
  /// Starts watching, once all ranks have joined: before that, silence means nothing. `look` is
  /// called by the watchdog's thread.
  void watch(const WatchdogOptions& options, std::function<Activity()> look);
  bool watching() const;
  /// The run is over on every rank: from here on, a connection that closes means nothing.
  void stop();

  /// For a rank that failed alone: tells the others why, so that their report says it, and ends
  /// this process with `code`. A communication error is mostly the consequence of a peer's death,
  /// and the report of that death says more: so it is waited for a little.
  [[noreturn]] void leave(ExitCode code, std::string_view why);

 private:
  struct Ring;
  int rank_;
  std::unique_ptr<Ring> ring_;
  std::jthread thread_;
};

}  // namespace tessera::guard
