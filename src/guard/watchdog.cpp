#include "guard/watchdog.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "core/ending.hpp"
#include "core/terminal.hpp"
#include "core/thread.hpp"
#include "guard/report.hpp"
#include "guard/socket.hpp"

namespace tessera::guard {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

enum class Kind : std::uint8_t { heartbeat, goodbye, casualty, bystander };

struct FrameHeader {
  std::uint32_t text_bytes = 0;
  std::int32_t rank = 0;  // whom it is about
  Kind kind = Kind::heartbeat;
};
constexpr std::size_t kLongestText = 4096;

/// One neighbour.
struct Link {
  Socket socket;
  int peer = 0;
  std::string received, unsent;
  Clock::time_point last_heard;
  std::string doing = "nothing was heard of it";
  bool said_goodbye = false;
};

enum class Ending { no, goodbye, failure };

/// What comes of the ring that is being made: until that is known, its thread waits.
enum class Fate : std::uint8_t { open, joined, watched, given_up };

}  // namespace

struct Watchdog::Ring {
  int rank = 0, size = 0;
  std::vector<Socket> listeners;
  Socket wake;
  std::array<Link, 2> links;
  WatchdogOptions options;
  std::function<Activity()> look;
  std::atomic<Fate> fate{Fate::open};
  Greeting expected;  // of the rank before, from Fate::joined on
  Deadline accept_until;
  std::promise<Socket> accepted;

  std::mutex mutex;  // what the rank's own threads tell the watchdog's
  Ending ending = Ending::no;
  ExitCode exit_code = ExitCode::ok;
  std::string why;

  PeerReport report;  // by the watchdog's thread alone, as the rest
  std::optional<Clock::time_point> leaving_at;
  bool over = false;  // this rank has said goodbye: its neighbours answer by closing
  std::uint64_t progress = 0;
  Clock::time_point progress_at, looked_at;

  std::chrono::milliseconds heartbeat() const {
    return std::min<std::chrono::milliseconds>(250ms, options.hang_timeout / 4);
  }

  void decide(Fate decision) {
    fate = decision;
    fate.notify_one();
  }

  void tell_own_thread(Ending how, ExitCode code, std::string_view text) {
    {
      const std::lock_guard lock(mutex);
      ending = how, exit_code = code;
      try {
        why = text;
      } catch (const std::bad_alloc&) {
        why.clear();  // the code must do
      }
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(wake.descriptor(), &one, sizeof one);
  }

  void live();
  void accept();
  void run();
  void run_or_leave();
  void wait_for_news();
  void receive(Link& link);
  void handle(Link& from, const FrameHeader& header, std::string text);
  void closed(Link& link);
  void send(Link& link, Kind kind, int about, std::string_view text);
  void pass_on(const Link* from, Kind kind, int about, std::string_view text);
  void flush(Link& link);
  void drain(std::chrono::milliseconds patience);
  void learn_of(int casualty, std::string text, const Link* from);
  void look_around();
  [[noreturn]] void leave(ExitCode code);
};

void Watchdog::Ring::send(Link& link, Kind kind, int about, std::string_view text) {
  if (!link.socket) return;
  const auto cut = text.substr(0, kLongestText);
  const FrameHeader header{
      .text_bytes = static_cast<std::uint32_t>(cut.size()), .rank = about, .kind = kind};
  link.unsent.append(reinterpret_cast<const char*>(&header), sizeof header).append(cut);
  flush(link);
}

void Watchdog::Ring::pass_on(const Link* from, Kind kind, int about, std::string_view text) {
  for (Link& link : links) {
    if (&link != from) send(link, kind, about, text);
  }
}

void Watchdog::Ring::flush(Link& link) {
  while (link.socket && !link.unsent.empty()) {
    const ssize_t n = ::send(link.socket.descriptor(), link.unsent.data(), link.unsent.size(),
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n < 0) return;  // reading will say that it is closed, after what is still to be read
    link.unsent.erase(0, static_cast<std::size_t>(n));
  }
}

void Watchdog::Ring::receive(Link& link) {
  char buffer[4096];
  while (link.socket) {
    const ssize_t n = ::recv(link.socket.descriptor(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n <= 0) return closed(link);
    link.last_heard = Clock::now();
    link.received.append(buffer, static_cast<std::size_t>(n));
    FrameHeader header;
    while (link.received.size() >= sizeof header) {
      std::memcpy(&header, link.received.data(), sizeof header);
      if (header.text_bytes > kLongestText) return closed(link);
      if (link.received.size() < sizeof header + header.text_bytes) break;
      std::string text = link.received.substr(sizeof header, header.text_bytes);
      link.received.erase(0, sizeof header + header.text_bytes);
      handle(link, header, std::move(text));
    }
  }
}

void Watchdog::Ring::handle(Link& from, const FrameHeader& header, std::string text) {
  switch (header.kind) {
    case Kind::heartbeat: from.doing = std::move(text); return;
    case Kind::goodbye: from.said_goodbye = true; return;
    case Kind::casualty: learn_of(header.rank, std::move(text), &from); return;
    case Kind::bystander:
      if (report.bystanders.emplace(header.rank, text).second) {
        pass_on(&from, Kind::bystander, header.rank, text);
      }
      return;
  }
}

void Watchdog::Ring::closed(Link& link) {
  link.socket = Socket();
  // Whoever leaves because of a casualty has told its neighbours so before.
  if (link.said_goodbye || leaving_at || over) return;
  learn_of(
      link.peer,
      "its connection closed: the process was killed, or crashed; last heard of in " + link.doing,
      &link);
}

void Watchdog::Ring::learn_of(int casualty, std::string text, const Link* from) {
  const auto [entry, news] = report.casualties.emplace(casualty, std::move(text));
  if (!news) return;
  pass_on(from, Kind::casualty, casualty, entry->second);
  if (leaving_at) return;
  leaving_at = Clock::now() + 300ms + size * 100us;  // the news go round, and all answer
  if (casualty == rank) return;
  const std::string doing = look().doing;
  report.bystanders.emplace(rank, doing);
  pass_on(nullptr, Kind::bystander, rank, doing);
}

/// Heartbeats out, silences noticed.
void Watchdog::Ring::look_around() {
  const auto now = Clock::now();
  const Activity activity = look();
  // Stopped itself and woken again, this process knows nothing of how long the others were silent.
  const bool slept = now - looked_at > heartbeat() + options.hang_timeout / 2;
  looked_at = now;
  if (slept || activity.progress != progress || !activity.must_advance) {
    progress = activity.progress;
    progress_at = now;
  }
  const auto patience = fmt::format("{:.0f} s", options.hang_timeout.count() / 1e3);
  for (Link& link : links) {
    send(link, Kind::heartbeat, rank, activity.doing);
    if (slept) link.last_heard = now;
    if (link.socket && !link.said_goodbye && now - link.last_heard > options.hang_timeout) {
      learn_of(link.peer,
               fmt::format("silent for {} (guard.hang_timeout): stopped, or its node is out of "
                           "reach; last heard of in {}",
                           patience, link.doing),
               &link);
    }
  }
  if (now - progress_at > options.hang_timeout) {
    learn_of(rank,
             fmt::format("no progress for {} (guard.hang_timeout) in {}", patience, activity.doing),
             nullptr);
  }
}

void Watchdog::Ring::wait_for_news() {
  std::array<pollfd, 3> entries{};
  entries[0] = {.fd = wake.descriptor(), .events = POLLIN, .revents = 0};
  for (std::size_t i = 0; i < links.size(); ++i) {
    const short events = static_cast<short>(links[i].unsent.empty() ? POLLIN : POLLIN | POLLOUT);
    entries[i + 1] = {.fd = links[i].socket.descriptor(), .events = events, .revents = 0};
  }
  const auto rest = leaving_at ? 20ms : heartbeat();
  ::poll(entries.data(), entries.size(), static_cast<int>(rest.count()));
  std::uint64_t wakes = 0;
  [[maybe_unused]] const ssize_t n = ::read(wake.descriptor(), &wakes, sizeof wakes);
  for (Link& link : links) {
    receive(link);
    flush(link);
  }
}

/// Sends what is unsent and reads until the neighbours have closed too: closing with bytes unread
/// would take back what they have not read yet.
void Watchdog::Ring::drain(std::chrono::milliseconds patience) {
  const auto until = Clock::now() + patience;
  while (Clock::now() < until) {
    bool open = false;
    for (Link& link : links) {
      flush(link);
      if (link.socket && link.unsent.empty()) ::shutdown(link.socket.descriptor(), SHUT_WR);
      receive(link);
      open = open || link.socket;
    }
    if (!open) return;
    std::this_thread::sleep_for(2ms);
  }
}

void Watchdog::Ring::leave(ExitCode code) {
  const bool speaks =
      !report.casualties.contains(rank) || report.casualties.size() > 1 || code == ExitCode::comm;
  const bool lowest = report.bystanders.empty() || report.bystanders.begin()->first >= rank;
  try {
    if (speaks && lowest) publish(report, options.record);
    drain(500ms);
  } catch (const std::bad_alloc&) {  // the code must do
  }
  ::_exit(static_cast<int>(code));
}

/// No exception may end this thread: what it throws is for want of memory, and this rank's own.
void Watchdog::Ring::run_or_leave() {
  try {
    run();
  } catch (...) {
    const auto last = current_ending();
    try {
      tell(fmt::format("tessera: rank {}: watchdog: {}\n", rank, last.text()));
    } catch (...) {  // the exit code must do
    }
    ::_exit(static_cast<int>(last.code));
  }
}

void Watchdog::Ring::run() {
  std::optional<Clock::time_point> echo_until;  // a peer's death may explain a communication error
  auto next_look = Clock::now();
  while (true) {
    if (Clock::now() >= next_look && !leaving_at) {
      look_around();
      next_look = Clock::now() + heartbeat();
    }
    wait_for_news();
    const std::unique_lock lock(mutex);
    if (ending == Ending::goodbye) break;
    if (ending == Ending::failure && !leaving_at) {
      if (!echo_until) echo_until = Clock::now() + (exit_code == ExitCode::comm ? 2000ms : 0ms);
      if (Clock::now() >= *echo_until) {
        learn_of(rank, fmt::format("left with exit code {}: {}", static_cast<int>(exit_code), why),
                 nullptr);
      }
    }
    const auto heard = report.casualties.size() + report.bystanders.size();
    if (leaving_at && (Clock::now() >= *leaving_at || heard >= static_cast<std::size_t>(size))) {
      leave(ending == Ending::failure && report.casualties.contains(rank) ? exit_code
                                                                          : ExitCode::comm);
    }
  }
  over = true;
  for (Link& link : links) send(link, Kind::goodbye, rank, "");
  drain(5s);
  // Somebody failed alone while the others were done: it will not be there when MPI ends.
  if (!report.casualties.empty()) leave(ExitCode::comm);
}

Watchdog::Watchdog(int rank) : rank_(rank), ring_(std::make_unique<Ring>()) { ring_->rank = rank; }

Watchdog::~Watchdog() {
  if (watching() && std::uncaught_exceptions() > 0)
    thread_.detach(), ring_.release();
  else
    stop();
}

bool Watchdog::watching() const { return thread_.joinable() && ring_->fate == Fate::watched; }

/// The watchdog's thread: accepts a neighbour once there are some, and watches when told so.
void Watchdog::Ring::live() {
  fate.wait(Fate::open);
  if (fate == Fate::joined) accept();
  fate.wait(Fate::joined);
  if (fate == Fate::watched) run_or_leave();
}

void Watchdog::Ring::accept() {
  try {
    accepted.set_value(accept_from(listeners, expected, accept_until));
  } catch (...) {
    accepted.set_exception(std::current_exception());
  }
}

std::string Watchdog::listen(std::span<const std::string> addresses) {
  TESSERA_CHECK(!thread_.joinable(), "watchdog: listens already");
  auto [sockets, endpoint] = listen_on(addresses);
  ring_->listeners = std::move(sockets);
  ring_->wake = Socket(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!ring_->wake) throw CommError("watchdog: cannot make an eventfd: " + errno_text(errno));
  std::string line = endpoint.to_text();
  thread_ = start_thread("watchdog", [ring = ring_.get()] { ring->live(); });
  return line;
}

void Watchdog::join(std::span<const std::string> endpoints, std::uint64_t secret) {
  Ring& ring = *ring_;
  const int size = static_cast<int>(endpoints.size());
  TESSERA_CHECK(size > 1 && thread_.joinable() && ring.fate == Fate::open,
                "watchdog: joins a ring of {} twice, or without listening", size);
  const int after = (rank_ + 1) % size, before = (rank_ + size - 1) % size;
  ring.size = size;
  ring.expected = {.secret = secret, .from = before, .to = rank_};
  ring.accept_until = Clock::now() + 20s;
  auto accepted = ring.accepted.get_future();
  ring.decide(Fate::joined);
  std::exception_ptr not_connected;
  Socket outgoing;
  try {
    outgoing = connect_to(Endpoint::from_text(endpoints[static_cast<std::size_t>(after)]),
                          {.secret = secret, .from = rank_, .to = after}, ring.accept_until);
  } catch (...) {
    not_connected = std::current_exception();
  }
  accepted.wait();
  ring.listeners.clear();
  if (not_connected) std::rethrow_exception(not_connected);
  ring.links[0].socket = accepted.get(), ring.links[0].peer = before;
  ring.links[1].socket = std::move(outgoing), ring.links[1].peer = after;
}

void Watchdog::watch(const WatchdogOptions& options, std::function<Activity()> look) {
  Ring& ring = *ring_;
  TESSERA_CHECK(ring.fate == Fate::joined && options.hang_timeout.count() > 0,
                "watchdog: started twice, without a ring, or without a time limit");
  ring.options = options;
  ring.look = std::move(look);
  ring.progress_at = ring.looked_at = Clock::now();
  for (Link& link : ring.links) link.last_heard = Clock::now();
  ring.decide(Fate::watched);
}

void Watchdog::stop() {
  if (!thread_.joinable()) return;
  ring_->tell_own_thread(Ending::goodbye, ExitCode::ok, "");
  if (!watching()) ring_->decide(Fate::given_up);
  thread_.join();
}

void Watchdog::leave(ExitCode code, std::string_view why) {
  TESSERA_CHECK(watching(), "watchdog: not started");
  ring_->tell_own_thread(Ending::failure, code, why);
  while (true) ::pause();  // the watchdog's thread ends the process
}

}  // namespace tessera::guard
