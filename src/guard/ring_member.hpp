// What a rank's watchdog says and does, by what it hears and by the clock: without threads, sockets
// or a clock of its own, so that a test can play a whole ring.
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

/// What the rank is doing, as its watchdog sees it: a heartbeat carries `doing` to the neighbours.
struct Activity {
  bool must_advance = false;   // in a step: `progress` may not stand still
  std::uint64_t progress = 0;  // grows with everything that gets done
  std::string doing;           // "step 12: forward block.3, micro-batch 0"
};

/// The neighbours of a rank: the ring goes from rank 0 upwards and back to it.
enum class Side : std::uint8_t { before, after };
inline constexpr std::array kSides = {Side::before, Side::after};

class RingMember {
 public:
  /// Of its life: `leaving` once it knows of a casualty and the news have gone round, `parting`
  /// once it has said goodbye; in both it sends what is unsent, hears its neighbours out, and is
  /// `gone`.
  enum class Phase : std::uint8_t { watching, leaving, parting, gone };

  /// Of `size` ranks, at least two. `look` tells what the rank is doing.
  RingMember(int rank, int size, Milliseconds hang_timeout, std::function<Activity()> look,
             Time now);

  /// What came from a neighbour, and the end of its connection.
  void receive(Side from, std::string_view bytes, Time now);
  void closed(Side from, Time now);
  /// The rank itself failed: the others are told why, and it leaves with `code`. Before an error of
  /// communication is told a peer's death is waited for, which may be behind it. What is said again
  /// changes nothing.
  void fail(ExitCode code, std::string_view why);
  /// The run is over on every rank: connections that close mean nothing from here on.
  void part();
  /// Does what the time demands. To be called once rest() has passed, or something was heard.
  void advance(Time now);

  Phase phase() const { return phase_; }
  /// What the process is to end with; nothing as long as, or because, there is no reason to.
  std::optional<ExitCode> exit_code() const { return exit_code_; }
  /// Whether it is this rank that writes the report: the lowest that still hears others.
  bool reports() const;
  const PeerReport& report() const { return report_; }

  bool is_open(Side side) const { return link(side).open; }
  /// What a neighbour is still to be sent; who sends it erases it.
  std::string& unsent(Side side) { return link(side).unsent; }
  /// Whether nothing more will be sent than what is unsent.
  bool is_draining() const { return phase_ == Phase::leaving || phase_ == Phase::parting; }
  /// How long advance() can wait.
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
