// The rules of a rank's watchdog: what it sends and when it leaves, from what it hears and the time
// that it is told. It has no threads, sockets or clock of its own, so that a test can play a whole
// ring.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "guard/report.hpp"

namespace tessera::guard {

using Milliseconds = std::chrono::milliseconds;
using Time = std::chrono::steady_clock::time_point;

/// What the rank is doing, as its watchdog sees it. Heartbeats carry `doing` to the neighbours.
struct Activity {
  bool must_advance = false;   // in a step: `progress` may not stand still
  std::uint64_t progress = 0;  // grows with everything that gets done
  std::string doing;           // "step 12: forward block.3, micro-batch 0"
};

/// The neighbours of a rank. The ring goes from rank 0 upwards and from the last rank back to 0.
enum class Side : std::uint8_t { before, after };
inline constexpr std::array kSides = {Side::before, Side::after};

class RingMember {
 public:
  /// `watching`; `leaving` once it knows of a casualty and the news has had time to go round the
  /// ring; `parting` once it has said goodbye; `gone`. While leaving or parting it still sends what
  /// is unsent and listens until its neighbours have closed their connections.
  enum class Phase : std::uint8_t { watching, leaving, parting, gone };

  /// `size`: ranks of the ring, at least two. `look` returns what the rank is doing.
  RingMember(int rank, int size, Milliseconds hang_timeout, std::function<Activity()> look,
             Time now);

  /// Bytes that came from a neighbour, and the end of its connection.
  void receive(Side from, std::string_view bytes, Time now);
  void closed(Side from, Time now);
  /// This rank itself failed: it tells the others why and leaves with `code`. After an error of
  /// communication it first waits a little for news of a peer's death, which is the likely cause.
  /// Further calls change nothing.
  void fail(ExitCode code, std::string_view why);
  /// The run is over on every rank: connections that close mean nothing from here on.
  void part();
  /// Does what is due at this time. To be called once rest() has passed, and whenever something was
  /// heard.
  void advance(Time now);

  Phase phase() const { return phase_; }
  /// The exit code that the process is to end with; nothing if it need not end.
  std::optional<ExitCode> exit_code() const { return exit_code_; }
  /// Whether this rank writes the report: it is the lowest of those that still hear one another.
  bool reports() const;
  const PeerReport& report() const { return report_; }

  bool is_open(Side side) const { return link(side).open; }
  /// Bytes that are still to be sent to a neighbour; whoever sends them erases them.
  std::string& unsent(Side side) { return link(side).unsent; }
  /// Whether nothing will be sent any more beyond what is unsent.
  bool is_draining() const { return phase_ == Phase::leaving || phase_ == Phase::parting; }
  /// How long until advance() must be called again.
  Milliseconds rest() const;

 private:
  enum class Kind : std::uint8_t { heartbeat, goodbye, casualty, bystander };
  struct FrameHeader {
    std::uint32_t text_bytes = 0;
    std::int32_t rank = 0;  // whom it is about
    Kind kind = Kind::heartbeat;
  };
  struct Link {
    int peer = 0;
    bool open = true;
    std::string received, unsent;
    Time last_heard;
    std::string doing = "nothing was heard of it";
    bool said_goodbye = false;
  };
  struct Failure {
    ExitCode code = ExitCode::ok;
    std::string why;
  };

  Link& link(Side side) { return links_[static_cast<std::size_t>(side)]; }
  const Link& link(Side side) const { return links_[static_cast<std::size_t>(side)]; }
  Milliseconds heartbeat() const;
  void handle(Link& from, const FrameHeader& header, std::string text, Time now);
  void close(Link& link, Time now);
  void send(Link& link, Kind kind, int about, std::string_view text);
  void pass_on(const Link* from, Kind kind, int about, std::string_view text);
  void learn_of(int casualty, std::string text, const Link* from, Time now);
  void look_around(Time now);
  void leave(ExitCode code);

  int rank_, size_;
  Milliseconds hang_timeout_;
  std::function<Activity()> look_;
  std::array<Link, 2> links_;
  Phase phase_ = Phase::watching;
  PeerReport report_;
  std::optional<ExitCode> exit_code_;
  std::optional<Failure> failure_;
  std::optional<Time> echo_until_;  // a peer's death may explain a communication error
  std::optional<Time> leaving_at_;
  std::optional<Time> drain_until_;
  std::uint64_t progress_ = 0;
  Time progress_at_, looked_at_, next_look_;
};

}  // namespace tessera::guard
