#include "guard/watchdog.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/ending.hpp"
#include "core/terminal.hpp"
#include "core/thread.hpp"
#include "guard/socket.hpp"

namespace tessera::guard {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

enum class Ending { no, goodbye, failure };

/// How far the ring has come; the watchdog's thread waits for the next decision.
enum class Fate : std::uint8_t { open, joined, watched, given_up };

}  // namespace

/// Moves the bytes of a RingMember and keeps its time; all rules are RingMember's.
struct Watchdog::Ring {
  int rank = 0, size = 0;
  std::vector<Socket> listeners;
  Socket wake;
  std::array<Socket, 2> sockets;  // by Side
  std::function<void(const std::string& report)> record;
  std::optional<RingMember> member;
  std::atomic<Fate> fate{Fate::open};
  Greeting expected;  // of the rank before, from Fate::joined on
  Deadline accept_until;
  std::promise<Socket> accepted;

  std::mutex mutex;  // what the rank's own threads tell the watchdog's
  Ending ending = Ending::no;
  ExitCode exit_code = ExitCode::ok;
  std::string why;

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
        why.clear();  // no memory for words: the exit code must be enough
      }
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(wake.descriptor(), &one, sizeof one);
  }

  void live();
  void accept();
  void run();
  void run_or_leave();
  void hear_own_threads();
  void wait_for_news();
  void receive(Side side);
  void flush(Side side);
  Socket& socket(Side side) { return sockets[static_cast<std::size_t>(side)]; }
};

void Watchdog::Ring::flush(Side side) {
  const int to = socket(side).descriptor();
  std::string& unsent = member->unsent(side);
  while (socket(side) && !unsent.empty()) {
    const ssize_t n = ::send(to, unsent.data(), unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;  // the buffer is full, or the connection is closed, which receive() notices
    unsent.erase(0, static_cast<std::size_t>(n));
  }
  if (socket(side) && member->is_draining()) ::shutdown(to, SHUT_WR);
}

void Watchdog::Ring::receive(Side side) {
  char buffer[4096];
  while (socket(side)) {
    const ssize_t n = ::recv(socket(side).descriptor(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n > 0) member->receive(side, {buffer, static_cast<std::size_t>(n)}, Clock::now());
    if (n <= 0) member->closed(side, Clock::now());
    if (!member->is_open(side)) socket(side) = Socket();
  }
}

void Watchdog::Ring::wait_for_news() {
  std::array<pollfd, 3> entries{};
  entries[0] = {.fd = wake.descriptor(), .events = POLLIN, .revents = 0};
  for (const Side side : kSides) {
    const short events =
        static_cast<short>(member->unsent(side).empty() ? POLLIN : POLLIN | POLLOUT);
    entries[static_cast<std::size_t>(side) + 1] = {
        .fd = socket(side).descriptor(), .events = events, .revents = 0};
  }
  ::poll(entries.data(), entries.size(), static_cast<int>(member->rest().count()));
  std::uint64_t wakes = 0;
  [[maybe_unused]] const ssize_t n = ::read(wake.descriptor(), &wakes, sizeof wakes);
  for (const Side side : kSides) receive(side);
}

void Watchdog::Ring::hear_own_threads() {
  const std::lock_guard lock(mutex);
  if (ending == Ending::goodbye) member->part();
  if (ending == Ending::failure) member->fail(exit_code, why);
}

void Watchdog::Ring::run() {
  using Phase = RingMember::Phase;
  for (bool published = false; member->phase() != Phase::gone;) {
    for (const Side side : kSides) flush(side);
    wait_for_news();
    hear_own_threads();
    member->advance(Clock::now());
    if (member->phase() != Phase::leaving || std::exchange(published, true)) continue;
    for (const Side side : kSides) flush(side);
    if (member->reports()) publish(member->report(), record);
  }
}

/// No exception may leave this thread. What it throws means that memory has run out, an error of
/// this rank alone.
void Watchdog::Ring::run_or_leave() {
  try {
    run();
  } catch (...) {
    const auto last = current_ending();
    if (!member->exit_code()) {
      try {
        tell(fmt::format("tessera: rank {}: watchdog: {}\n", rank, last.text()));
      } catch (...) {  // no memory for words: the exit code must be enough
      }
    }
    ::_exit(static_cast<int>(member->exit_code().value_or(last.code)));
  }
  if (member->exit_code()) ::_exit(static_cast<int>(*member->exit_code()));
}

Watchdog::Watchdog(int rank) : rank_(rank), ring_(std::make_unique<Ring>()) { ring_->rank = rank; }

Watchdog::~Watchdog() {
  if (watching() && std::uncaught_exceptions() > 0)
    thread_.detach(), ring_.release();
  else
    stop();
}

bool Watchdog::watching() const { return thread_.joinable() && ring_->fate == Fate::watched; }

/// What the watchdog's thread does: accepts the neighbour's connection once join() says who it is,
/// and watches once watch() was called.
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
  ring.socket(Side::before) = accepted.get();
  ring.socket(Side::after) = std::move(outgoing);
}

void Watchdog::watch(const WatchdogOptions& options, std::function<Activity()> look) {
  Ring& ring = *ring_;
  TESSERA_CHECK(ring.fate == Fate::joined && options.hang_timeout.count() > 0,
                "watchdog: started twice, without a ring, or without a time limit");
  ring.record = options.record;
  ring.member.emplace(rank_, ring.size, options.hang_timeout, std::move(look), Clock::now());
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
