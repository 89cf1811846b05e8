#include "guard/socket.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>

#include "core/error.hpp"

namespace tessera::guard {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

[[noreturn]] void refuse(std::string_view what) {
  const int error = errno;
  const auto message = fmt::format("watchdog: cannot {}: {}", what, errno_text(error));
  if (error == ENOMEM || error == ENOBUFS) throw MemoryError(message);
  throw CommError(message);
}

/// Returns once one of `entries` is ready (true), or at `until`.
bool wait_for(std::span<pollfd> entries, Deadline until) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return false;
    const int n = ::poll(entries.data(), entries.size(), static_cast<int>(left));
    if (n >= 0) return n > 0;
    if (errno != EINTR) refuse("wait for connections");
  }
}

/// Whether `events` come before `until`.
bool ready(int descriptor, short events, Deadline until) {
  pollfd entry{.fd = descriptor, .events = events, .revents = 0};
  return wait_for({&entry, 1}, until);
}

bool send_greeting(int descriptor, const Greeting& greeting) {
  return ::send(descriptor, &greeting, sizeof greeting, MSG_NOSIGNAL) ==
         static_cast<ssize_t>(sizeof greeting);
}

/// The part of a greeting that has arrived.
struct Heard {
  Greeting greeting;
  std::size_t bytes = 0;
};
enum class Hearing { waits, right, wrong };

/// Reads what is there, up to the greeting's end; whatever differs from `expected` is wrong from
/// its first byte on, as is a connection that closed.
Hearing hear(int descriptor, Heard& heard, const Greeting& expected) {
  auto* bytes = reinterpret_cast<char*>(&heard.greeting);
  while (heard.bytes < sizeof expected) {
    const ssize_t n = ::recv(descriptor, bytes + heard.bytes, sizeof expected - heard.bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Hearing::waits;
    if (n <= 0) return Hearing::wrong;
    heard.bytes += static_cast<std::size_t>(n);
    if (std::memcmp(bytes, &expected, heard.bytes) != 0) return Hearing::wrong;
  }
  return Hearing::right;
}

bool receive_greeting(int descriptor, const Greeting& expected, Deadline until) {
  Heard heard;
  while (ready(descriptor, POLLIN, until)) {
    const Hearing hearing = hear(descriptor, heard, expected);
    if (hearing != Hearing::waits) return hearing == Hearing::right;
  }
  return false;
}

Greeting answer_to(const Greeting& g) { return {.secret = g.secret, .from = g.to, .to = g.from}; }

void send_at_once(int descriptor) {
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

std::optional<sockaddr_in> socket_address(const Endpoint::Port& port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port.number));
  if (inet_pton(AF_INET, port.address.c_str(), &address.sin_addr) != 1) return std::nullopt;
  return address;
}

Socket try_port(const Endpoint::Port& port, const Greeting& greeting, Deadline until) {
  const auto peer = socket_address(port);
  if (!peer) return {};
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) refuse("open a socket");
  if (::connect(socket.descriptor(), reinterpret_cast<const sockaddr*>(&*peer), sizeof *peer) !=
      0) {
    int error = 0;
    socklen_t size = sizeof error;
    if (errno != EINPROGRESS || !ready(socket.descriptor(), POLLOUT, until) ||
        getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0)
      return {};
  }
  send_at_once(socket.descriptor());
  if (!send_greeting(socket.descriptor(), greeting) ||
      !receive_greeting(socket.descriptor(), answer_to(greeting), until) ||
      !send_greeting(socket.descriptor(), greeting))
    return {};
  return socket;
}

/// A connection that has not proved yet whose it is.
struct Stranger {
  Socket socket;
  Deadline until;
  Heard heard;
  bool answered = false;  // it greeted as expected, and has to confirm
};

/// Connections that have been accepted but are not known to be the peer's. All are watched
/// together, so that none holds another up.
class Strangers {
 public:
  Strangers(const Greeting& expected, Deadline until) : expected_(expected), until_(until) {}

  /// Lets in one who stands before `listener`, so that each is heard before many more come. A
  /// newcomer that means it greets at once: it takes the place of who has said nothing for longest.
  void admit(const Socket& listener) {
    Socket socket(::accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const bool too_many = !socket && (errno == EMFILE || errno == ENFILE);
    if (too_many && all_.empty()) refuse("accept a connection");
    if (too_many || (socket && all_.size() == kMost)) forget_one();
    if (!socket) return;
    send_at_once(socket.descriptor());
    all_.push_back({.socket = std::move(socket), .until = std::min(until_, Clock::now() + 1s)});
  }

  /// Hears them all; returns the one that proved to be the peer.
  Socket hear_all() {
    Socket peer;
    std::erase_if(all_, [&](Stranger& s) {
      if (peer) return false;
      const Verdict verdict = judge(s);
      if (verdict == Verdict::peer) peer = std::move(s.socket);
      return verdict != Verdict::waits;
    });
    return peer;
  }

  /// Appends what poll() is to look for.
  void add_to(std::vector<pollfd>& entries) const {
    for (const Stranger& s : all_)
      entries.push_back({.fd = s.socket.descriptor(), .events = POLLIN, .revents = 0});
  }
  /// When something is to be done though nothing comes.
  Deadline next() const {
    Deadline next = until_;
    for (const Stranger& s : all_) next = std::min(next, s.until);
    return next;
  }

 private:
  static constexpr std::size_t kMost = 64;
  enum class Verdict { waits, peer, gone };

  Verdict judge(Stranger& s) const {
    Hearing hearing = hear(s.socket.descriptor(), s.heard, expected_);
    if (hearing == Hearing::right && !s.answered) {
      // The peer may have lost patience and gone, leaving its greeting behind: it has to confirm.
      if (!send_greeting(s.socket.descriptor(), answer_to(expected_))) return Verdict::gone;
      s.answered = true, s.until = until_, s.heard = {};
      hearing = hear(s.socket.descriptor(), s.heard, expected_);
    }
    if (hearing == Hearing::right) return Verdict::peer;
    return hearing == Hearing::wrong || Clock::now() >= s.until ? Verdict::gone : Verdict::waits;
  }
  void forget_one() {
    const auto silent = std::ranges::find(all_, false, &Stranger::answered);
    all_.erase(silent == all_.end() ? all_.begin() : silent);
  }

  Greeting expected_;
  Deadline until_;
  std::vector<Stranger> all_;  // in the order in which they came
};

}  // namespace

Socket::~Socket() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string Endpoint::to_text() const {
  std::string text;
  for (const Port& p : ports)
    text += fmt::format("{}{}:{}", text.empty() ? "" : " ", p.address, p.number);
  return text;
}

Endpoint Endpoint::from_text(const std::string& text) {
  std::istringstream words(text);
  words.exceptions(std::ios::badbit);  // throws if memory runs out
  Endpoint endpoint;
  for (std::string word; words >> word;) {
    const std::size_t colon = word.rfind(':');
    Port port{.address = word.substr(0, colon)};
    const char *end = word.data() + word.size(),
               *begin = colon == word.npos ? end : &word[colon + 1];
    const auto [stop, error] = std::from_chars(begin, end, port.number);
    if (error != std::errc() || stop != end)
      throw CommError("watchdog: no endpoint: \"" + text + "\"");
    endpoint.ports.push_back(std::move(port));
  }
  if (endpoint.ports.empty()) throw CommError("watchdog: no endpoint: \"" + text + "\"");
  return endpoint;
}

std::pair<std::vector<Socket>, Endpoint> listen_on(std::span<const std::string> addresses) {
  std::vector<Socket> sockets;
  Endpoint endpoint;
  for (const std::string& address : addresses) {
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) refuse("open a socket");
    auto at = socket_address({.address = address});
    if (!at) throw CommError("watchdog: no IPv4 address: \"" + address + "\"");
    socklen_t size = sizeof *at;
    auto* generic = reinterpret_cast<sockaddr*>(&*at);
    if (::bind(socket.descriptor(), generic, size) != 0) refuse("bind a port of " + address);
    // The peer's connection must find a place behind those of strangers that came before it.
    if (::listen(socket.descriptor(), SOMAXCONN) != 0) refuse("listen on " + address);
    if (::getsockname(socket.descriptor(), generic, &size) != 0) refuse("learn the port");
    endpoint.ports.push_back({.address = address, .number = ntohs(at->sin_port)});
    sockets.push_back(std::move(socket));
  }
  return {std::move(sockets), std::move(endpoint)};
}

Socket connect_to(const Endpoint& peer, const Greeting& greeting, Deadline until) {
  do {  // an address may be slow to answer, but must not use up the time of the others
    for (const Endpoint::Port& port : peer.ports) {
      Socket socket = try_port(port, greeting, std::min(until, Clock::now() + 2s));
      if (socket) return socket;
    }
    std::this_thread::sleep_for(50ms);
  } while (Clock::now() < until);
  throw CommError(fmt::format(
      "watchdog: rank {} does not answer on {}: check the firewall between the nodes, choose "
      "another network by guard.interface, or set guard.hang_timeout = 0 to run without watching "
      "peers",
      greeting.to, peer.to_text()));
}

Socket accept_from(std::span<const Socket> listeners, const Greeting& expected, Deadline until) {
  Strangers strangers(expected, until);
  std::vector<pollfd> entries;
  while (Clock::now() < until) {
    entries.clear();
    for (const Socket& listener : listeners)
      entries.push_back({.fd = listener.descriptor(), .events = POLLIN, .revents = 0});
    strangers.add_to(entries);
    wait_for(entries, strangers.next());
    for (const Socket& listener : listeners) strangers.admit(listener);
    if (Socket peer = strangers.hear_all()) return peer;
  }
  throw CommError(
      fmt::format("watchdog: rank {} did not connect: check the firewall between the nodes, choose "
                  "another network by guard.interface, or set guard.hang_timeout = 0 to run "
                  "without watching peers",
                  expected.from));
}

}  // namespace tessera::guard
