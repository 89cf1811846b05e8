#include "guard/socket.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <thread>

#include "core/error.hpp"

namespace tessera::guard {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

[[noreturn]] void refuse(std::string_view what) {
  throw CommError(fmt::format("watchdog: cannot {}: {}", what, errno_text(errno)));
}

std::vector<std::string> own_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) refuse("list this host's addresses");
  std::vector<std::string> usable;
  bool loopback = false;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP))
      continue;
    if (i->ifa_flags & IFF_LOOPBACK) {
      loopback = true;
      continue;
    }
    sockaddr_in address;
    std::memcpy(&address, i->ifa_addr, sizeof address);
    char text[INET_ADDRSTRLEN];
    usable.emplace_back(inet_ntop(AF_INET, &address.sin_addr, text, sizeof text));
  }
  freeifaddrs(list);
  if (loopback) usable.emplace_back("127.0.0.1");
  return usable;
}

/// Whether `events` come before `until`.
bool ready(int descriptor, short events, Deadline until) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return false;
    pollfd entry{.fd = descriptor, .events = events, .revents = 0};
    const int n = ::poll(&entry, 1, static_cast<int>(left));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

bool send_greeting(int descriptor, const Greeting& greeting) {
  return ::send(descriptor, &greeting, sizeof greeting, MSG_NOSIGNAL) ==
         static_cast<ssize_t>(sizeof greeting);
}

bool receive_greeting(int descriptor, const Greeting& expected, Deadline until) {
  Greeting heard;
  if (!ready(descriptor, POLLIN, until)) return false;
  // 16 bytes travel as one segment; what arrives in pieces is no greeting of ours.
  return ::recv(descriptor, &heard, sizeof heard, 0) == static_cast<ssize_t>(sizeof heard) &&
         heard == expected;
}

Greeting answer_to(const Greeting& g) { return {.secret = g.secret, .from = g.to, .to = g.from}; }

void send_at_once(int descriptor) {
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Socket try_address(const std::string& address, int port, const Greeting& greeting, Deadline until) {
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<std::uint16_t>(port));
  if (inet_pton(AF_INET, address.c_str(), &peer.sin_addr) != 1) return {};
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) refuse("open a socket");
  if (::connect(socket.descriptor(), reinterpret_cast<const sockaddr*>(&peer), sizeof peer) != 0) {
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

}  // namespace

Socket::~Socket() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string Endpoint::to_text() const {
  return fmt::format("{} {}", port, fmt::join(addresses, " "));
}

Endpoint Endpoint::from_text(const std::string& text) {
  std::istringstream words(text);
  Endpoint endpoint;
  if (!(words >> endpoint.port)) throw CommError("watchdog: no endpoint: \"" + text + "\"");
  for (std::string word; words >> word;) endpoint.addresses.push_back(word);
  return endpoint;
}

std::pair<Socket, Endpoint> listen_anywhere() {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) refuse("open a socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.descriptor(), generic, size) != 0) refuse("bind a port");
  if (::listen(socket.descriptor(), 16) != 0) refuse("listen");
  if (::getsockname(socket.descriptor(), generic, &size) != 0) refuse("learn the port");
  return {std::move(socket),
          Endpoint{.port = ntohs(address.sin_port), .addresses = own_addresses()}};
}

Socket connect_to(const Endpoint& peer, const Greeting& greeting, Deadline until) {
  do {  // an address may be slow to answer, but must not use up the time of the others
    for (const std::string& address : peer.addresses) {
      Socket socket = try_address(address, peer.port, greeting, std::min(until, Clock::now() + 2s));
      if (socket) return socket;
    }
    std::this_thread::sleep_for(50ms);
  } while (Clock::now() < until);
  throw CommError(
      fmt::format("watchdog: rank {} does not answer on port {} of {}: check the firewall between "
                  "the nodes, or "
                  "set guard.hang_timeout = 0 to run without watching peers",
                  greeting.to, peer.port, fmt::join(peer.addresses, ", ")));
}

Socket accept_from(const Socket& listener, const Greeting& expected, Deadline until) {
  while (ready(listener.descriptor(), POLLIN, until)) {
    Socket socket(::accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) continue;
    send_at_once(socket.descriptor());
    // The peer may have lost patience and gone, leaving its greeting behind: it has to confirm.
    if (receive_greeting(socket.descriptor(), expected, std::min(until, Clock::now() + 1s)) &&
        send_greeting(socket.descriptor(), answer_to(expected)) &&
        receive_greeting(socket.descriptor(), expected, until))
      return socket;
  }
  throw CommError(
      fmt::format("watchdog: rank {} did not connect: check the firewall between the nodes, or set "
                  "guard.hang_timeout = 0 to run without watching peers",
                  expected.from));
}

}  // namespace tessera::guard
