#include "guard/networks.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/error.hpp"
#include "guard/socket.hpp"

namespace tessera::guard {
namespace {

/// In the host's byte order.
std::optional<std::uint32_t> address_bits(const std::string& text) {
  in_addr address{};
  if (inet_pton(AF_INET, text.c_str(), &address) != 1) return std::nullopt;
  return ntohl(address.s_addr);
}

std::string address_text(const sockaddr_in& address) {
  char text[INET_ADDRSTRLEN];
  return inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
}

/// Whether `network` belongs to what one `word` of a list names.
bool names(const std::string& word, const Network& network) {
  if (word == network.interface || word == network.address) return true;
  const std::size_t slash = word.find('/');
  if (slash == word.npos) return false;
  int prefix = -1;
  const char* end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data() + slash + 1, end, prefix);
  const auto wanted = address_bits(word.substr(0, slash)), own = address_bits(network.address);
  if (error != std::errc() || stop != end || prefix < 0 || prefix > 32 || !wanted || !own)
    return false;
  return ((std::uint64_t{*wanted} ^ *own) >> (32 - prefix)) == 0;
}

/// The address of this host that a route to `address` begins at; nothing is sent. Nothing where no
/// route leads there.
std::optional<std::string> source_towards(const std::string& address) {
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(9);  // any: a connection of datagrams is a note of where they would go
  if (inet_pton(AF_INET, address.c_str(), &peer.sin_addr) != 1) return std::nullopt;
  const Socket socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{};
  socklen_t size = sizeof own;
  if (!socket ||
      ::connect(socket.descriptor(), reinterpret_cast<const sockaddr*>(&peer), sizeof peer) != 0 ||
      ::getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&own), &size) != 0)
    return std::nullopt;
  return address_text(own);
}

}  // namespace

std::vector<Network> own_networks() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0)
    throw CommError("cannot list this host's networks: " + errno_text(errno));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<Network> all;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP))
      continue;
    const auto* address = reinterpret_cast<const sockaddr_in*>(i->ifa_addr);
    const auto* mask = reinterpret_cast<const sockaddr_in*>(i->ifa_netmask);
    all.push_back({.interface = i->ifa_name,
                   .address = address_text(*address),
                   .prefix = mask == nullptr ? 32 : std::popcount(mask->sin_addr.s_addr),
                   .loopback = (i->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return all;
}

std::vector<std::string> chosen_addresses(std::span<const Network> own, std::string_view wanted) {
  std::vector<std::string> chosen;
  for (std::size_t begin = 0; begin <= wanted.size();) {
    const std::size_t end = std::min(wanted.find(',', begin), wanted.size());
    const std::string word(wanted.substr(begin, end - begin));
    for (const Network& network : own) {
      if (names(word, network) && std::ranges::find(chosen, network.address) == chosen.end())
        chosen.push_back(network.address);
    }
    begin = end + 1;
  }
  return chosen;
}

std::vector<std::string> addresses_towards(std::span<const Network> own,
                                           std::span<const std::string> addresses) {
  std::vector<std::string> sources;
  for (const std::string& address : addresses) {
    if (std::ranges::find(own, address, &Network::address) != own.end()) continue;
    const auto source = source_towards(address);
    if (source && std::ranges::find(sources, *source) == sources.end()) sources.push_back(*source);
  }
  return sources;
}

std::string to_text(std::span<const Network> networks) {
  std::string text;
  for (const Network& n : networks) {
    text += fmt::format("{}{} {}/{}", text.empty() ? "" : ", ", n.interface, n.address, n.prefix);
  }
  return text;
}

}  // namespace tessera::guard
