// TCP as the watchdog needs it: sockets that close themselves, connections that prove who they are.
#pragma once

#include <chrono>
#include <cstdint>
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

/// Where a process listens: "port address address ...".
struct Endpoint {
  int port = 0;
  std::vector<std::string> addresses;  // IPv4, of this host's interfaces; loopback last

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

/// A socket that listens on every interface, and its endpoint. Throws CommError.
std::pair<Socket, Endpoint> listen_anywhere();
/// Connects to the process that answers `greeting` with its mirror image, on whichever address, and
/// confirms with `greeting`.
/// Throws CommError naming the addresses when `until` passes.
Socket connect_to(const Endpoint& peer, const Greeting& greeting, Deadline until);
/// Accepts the connection that opens with `expected` and confirms the answer to it; closes others.
/// Throws CommError when `until` passes.
Socket accept_from(const Socket& listener, const Greeting& expected, Deadline until);

}  // namespace tessera::guard
