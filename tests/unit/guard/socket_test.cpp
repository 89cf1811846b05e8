// Connections between ranks: who may make them, and what must not get in their way.
#include "guard/socket.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <future>
#include <limits>
#include <string_view>

#include "core/error.hpp"

namespace tessera::guard {
namespace {

using namespace std::chrono_literals;

const std::vector<std::string> kLoopback{"127.0.0.1"};
constexpr Greeting kGreeting{.secret = 42, .from = 0, .to = 1};

Deadline in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

/// Whether a connection that opens with `greeting` comes about with a process that listens at
/// `peer`.
std::future<bool> connects(const Endpoint& peer, const Greeting& greeting,
                           std::chrono::milliseconds patience) {
  return std::async(std::launch::async, [=] {
    try {
      return static_cast<bool>(connect_to(peer, greeting, in(patience)));
    } catch (const CommError&) {
      return false;
    }
  });
}

TEST(Endpoint, TextIsReadBack) {
  const Endpoint written{.ports = {{"10.0.0.1", 4711}, {"127.0.0.1", 12}}};
  EXPECT_EQ(Endpoint::from_text(written.to_text()).ports, written.ports);
  for (const char* wrong : {"", "nonsense", "10.0.0.1:", "10.0.0.1:12x"})
    EXPECT_THROW(Endpoint::from_text(wrong), CommError) << wrong;
}

TEST(Socket, StrangersAreNotAccepted) {
  auto [listeners, endpoint] = listen_on(kLoopback);
  for (const Greeting& stranger :
       {Greeting{.secret = 666, .from = 0, .to = 1}, Greeting{.secret = 42, .from = 2, .to = 1},
        Greeting{.secret = 42, .from = 0, .to = 2}}) {
    auto connected = connects(endpoint, stranger, 200ms);
    EXPECT_THROW(accept_from(listeners, kGreeting, in(200ms)), CommError);
    EXPECT_FALSE(connected.get());
  }
}

TEST(Socket, ListenerThatDoesNotAnswerIsNotTheRightOne) {
  auto [listeners, endpoint] = listen_on(kLoopback);
  EXPECT_FALSE(connects(endpoint, kGreeting, 200ms).get());
}

TEST(Socket, RightPeerIsAcceptedAfterAStranger) {
  auto [listeners, endpoint] = listen_on(kLoopback);
  auto stranger = connects(endpoint, {.secret = 666, .from = 0, .to = 1}, 100ms);
  auto peer = connects(endpoint, kGreeting, 20s);
  EXPECT_TRUE(accept_from(listeners, kGreeting, in(20s)));
  EXPECT_TRUE(peer.get());
}

/// A connection of nobody's, and what it says.
Socket stranger(const Endpoint::Port& port, std::string_view words = "") {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port.number));
  inet_pton(AF_INET, port.address.c_str(), &address.sin_addr);
  if (::connect(socket.descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
      0)
    return {};
  EXPECT_EQ(::send(socket.descriptor(), words.data(), words.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(words.size()));
  return socket;
}

/// What comes from the other side within ten seconds; 0 or less: it has closed the connection.
ssize_t bytes_from(const Socket& socket) {
  pollfd entry{.fd = socket.descriptor(), .events = POLLIN, .revents = 0};
  if (::poll(&entry, 1, 10'000) != 1) return std::numeric_limits<ssize_t>::max();
  char buffer[100];
  return ::recv(socket.descriptor(), buffer, sizeof buffer, 0);
}

// One after the other they would take forty seconds, twice as long as the peer has.
TEST(Socket, StrangersThatSayNothingHoldNobodyUp) {
  auto [listeners, endpoint] = listen_on(kLoopback);
  for (const std::string_view words : {"", "GET", "GET / HTTP/1.0\r\n\r\n"}) {
    std::vector<Socket> strangers;
    for (int i = 0; i < 40; ++i) strangers.push_back(stranger(endpoint.ports.front(), words));
    auto peer = connects(endpoint, kGreeting, 20s);
    EXPECT_TRUE(accept_from(listeners, kGreeting, in(20s))) << words;
    EXPECT_TRUE(peer.get()) << words;
  }
}

TEST(Socket, MoreStrangersThanAreKeptWaitingHoldNobodyUp) {
  auto [listeners, endpoint] = listen_on(kLoopback);
  std::vector<Socket> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(stranger(endpoint.ports.front()));
  auto peer = connects(endpoint, kGreeting, 20s);
  EXPECT_TRUE(accept_from(listeners, kGreeting, in(20s)));
  EXPECT_TRUE(peer.get());
}

TEST(Socket, GarbageAndSilenceAreClosedWhileThePeerIsWaitedFor) {
  auto [listeners, endpoint] = listen_on(kLoopback);
  const Socket talks = stranger(endpoint.ports.front(), "G");
  const Socket silent = stranger(endpoint.ports.front());
  auto accepted = std::async(std::launch::async, [&from = listeners] {
    return static_cast<bool>(accept_from(from, kGreeting, in(20s)));
  });
  EXPECT_LE(bytes_from(talks), 0);
  EXPECT_LE(bytes_from(silent), 0);
  auto peer = connects(endpoint, kGreeting, 20s);
  EXPECT_TRUE(accepted.get());
  EXPECT_TRUE(peer.get());
}

TEST(Socket, GreetingInPiecesIsOne) {
  auto [listeners, endpoint] = listen_on(kLoopback);
  const std::string_view bytes(reinterpret_cast<const char*>(&kGreeting), sizeof kGreeting);
  const Socket peer = stranger(endpoint.ports.front(), bytes.substr(0, 5));
  auto accepted = std::async(std::launch::async, [&from = listeners] {
    return static_cast<bool>(accept_from(from, kGreeting, in(20s)));
  });
  const auto say = [&](std::string_view words) {
    ::send(peer.descriptor(), words.data(), words.size(), MSG_NOSIGNAL);
  };
  say(bytes.substr(5));
  EXPECT_EQ(bytes_from(peer), static_cast<ssize_t>(sizeof kGreeting)) << "no answer";
  say(bytes);
  EXPECT_TRUE(accepted.get());
}

TEST(Socket, ListensOnItsAddressesAlone) {
  auto [listeners, endpoint] = listen_on(std::vector<std::string>{"127.0.0.2", "127.0.0.3"});
  ASSERT_EQ(endpoint.ports.size(), 2U);
  for (const Endpoint::Port& port : endpoint.ports) {
    EXPECT_TRUE(stranger(port)) << port.address;
    EXPECT_FALSE(stranger({.address = "127.0.0.1", .number = port.number})) << port.address;
  }
  EXPECT_THROW(listen_on(std::vector<std::string>{"192.0.2.1"}), CommError) << "not this host's";
}

// A slow process accepts when the peer has already tried and gone: it must not take that for the
// connection.
TEST(Socket, ConnectionThatWasGivenUpIsNotAccepted) {
  auto [listeners, endpoint] = listen_on(kLoopback);
  EXPECT_FALSE(connects(endpoint, kGreeting, 100ms).get());
  auto peer = connects(endpoint, kGreeting, 10s);
  EXPECT_TRUE(accept_from(listeners, kGreeting, in(10s)));
  listeners.clear();
  EXPECT_TRUE(peer.get());
}

TEST(Socket, EveryAddressIsTried) {
  auto [listeners, endpoint] = listen_on(kLoopback);
  auto peer = connects({.ports = {{"unusable", 1}, endpoint.ports.front()}}, kGreeting, 5s);
  EXPECT_TRUE(accept_from(listeners, kGreeting, in(5s)));
  EXPECT_TRUE(peer.get());
}

TEST(Socket, ConnectionThatWasClosedIsTriedAgain) {
  auto [listeners, endpoint] = listen_on(kLoopback);
  auto peer = connects(endpoint, kGreeting, 20s);
  EXPECT_THROW(accept_from(listeners, {.secret = 666, .from = 0, .to = 1}, in(200ms)), CommError);
  EXPECT_TRUE(accept_from(listeners, kGreeting, in(20s)));
  EXPECT_TRUE(peer.get());
}

}  // namespace
}  // namespace tessera::guard
