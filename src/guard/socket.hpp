// TCP as the watchdog needs it: sockets that close themselves, connections that prove who they are.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera::guard {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket();
  int descriptor() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

/// Where a process listens: "10.1.0.5:4711 10.2.0.5:4712". IPv4.
struct Endpoint {
  struct Port {
    std::string address;
    int number = 0;
    bool operator==(const Port&) const = default;
  };
  std::vector<Port> ports;

  std::string to_text() const;
  static Endpoint from_text(const std::string& text);  // throws CommError
};

/// What both ends of a new connection tell each other, so that neither talks to a stranger (or to
/// another rank that has the same private address on another host).
struct Greeting {
  std::uint64_t secret = 0;
  std::int32_t from = 0, to = 0;  // ranks
  bool operator==(const Greeting&) const = default;
};

using Deadline = std::chrono::steady_clock::time_point;

/// Sockets that listen, one on each of these addresses of this host, and where that is. Throws
/// CommError.
std::pair<std::vector<Socket>, Endpoint> listen_on(std::span<const std::string> addresses);
/// Connects to the process that answers `greeting` with its mirror image, on whichever address, and
/// confirms with `greeting`.
/// Throws CommError naming the addresses when `until` passes.
Socket connect_to(const Endpoint& peer, const Greeting& greeting, Deadline until);
/// Accepts the connection that opens with `expected` and confirms the answer to it. Others are
/// closed: at once when they say anything else, after a second when they say nothing, and before
/// that when more come than are kept waiting. Throws CommError when `until` passes.
Socket accept_from(std::span<const Socket> listeners, const Greeting& expected, Deadline until);

}  // namespace tessera::guard
