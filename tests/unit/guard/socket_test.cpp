// Connections between ranks: who may make them, and what must not get in their way.
#include "guard/socket.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <future>

#include "core/error.hpp"

namespace tessera::guard {
namespace {

using namespace std::chrono_literals;

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
  const Endpoint written{.port = 4711, .addresses = {"10.0.0.1", "127.0.0.1"}};
  const Endpoint read = Endpoint::from_text(written.to_text());
  EXPECT_EQ(read.port, written.port);
  EXPECT_EQ(read.addresses, written.addresses);
  EXPECT_THROW(Endpoint::from_text("nonsense"), CommError);
}

TEST(Socket, StrangersAreNotAccepted) {
  auto [listener, endpoint] = listen_anywhere();
  for (const Greeting& stranger :
       {Greeting{.secret = 666, .from = 0, .to = 1}, Greeting{.secret = 42, .from = 2, .to = 1},
        Greeting{.secret = 42, .from = 0, .to = 2}}) {
    auto connected = connects(endpoint, stranger, 200ms);
    EXPECT_THROW(accept_from(listener, kGreeting, in(200ms)), CommError);
    EXPECT_FALSE(connected.get());
  }
}

TEST(Socket, ListenerThatDoesNotAnswerIsNotTheRightOne) {
  auto [listener, endpoint] = listen_anywhere();
  EXPECT_FALSE(connects(endpoint, kGreeting, 200ms).get());
}

TEST(Socket, RightPeerIsAcceptedAfterAStranger) {
  auto [listener, endpoint] = listen_anywhere();
  auto stranger = connects(endpoint, {.secret = 666, .from = 0, .to = 1}, 100ms);
  auto peer = connects(endpoint, kGreeting, 20s);
  EXPECT_TRUE(accept_from(listener, kGreeting, in(20s)));
  EXPECT_TRUE(peer.get());
}

TEST(Socket, StrangerThatSaysNothingDoesNotHoldTheListener) {
  auto [listener, endpoint] = listen_anywhere();
  const Socket stranger(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(endpoint.port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(
      ::connect(stranger.descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
      0);
  auto peer = connects(endpoint, kGreeting, 10s);
  EXPECT_TRUE(accept_from(listener, kGreeting, in(10s)));
  EXPECT_TRUE(peer.get());
}

// A slow process accepts when the peer has already tried and gone: it must not take that for the
// connection.
TEST(Socket, ConnectionThatWasGivenUpIsNotAccepted) {
  auto [listener, endpoint] = listen_anywhere();
  EXPECT_FALSE(connects(endpoint, kGreeting, 100ms).get());
  auto peer = connects(endpoint, kGreeting, 10s);
  EXPECT_TRUE(accept_from(listener, kGreeting, in(10s)));
  listener = Socket();
  EXPECT_TRUE(peer.get());
}

TEST(Socket, EveryAddressIsTried) {
  auto [listener, endpoint] = listen_anywhere();
  auto peer =
      connects({.port = endpoint.port, .addresses = {"unusable", "127.0.0.1"}}, kGreeting, 5s);
  EXPECT_TRUE(accept_from(listener, kGreeting, in(5s)));
  EXPECT_TRUE(peer.get());
}

TEST(Socket, ConnectionThatWasClosedIsTriedAgain) {
  auto [listener, endpoint] = listen_anywhere();
  auto peer = connects(endpoint, kGreeting, 20s);
  EXPECT_THROW(accept_from(listener, {.secret = 666, .from = 0, .to = 1}, in(200ms)), CommError);
  EXPECT_TRUE(accept_from(listener, kGreeting, in(20s)));
  EXPECT_TRUE(peer.get());
}

}  // namespace
}  // namespace tessera::guard
