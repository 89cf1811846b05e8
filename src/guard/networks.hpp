// The networks that a host belongs to, and which of them the ranks of a job use to talk.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::guard {

/// An IPv4 address of an interface that is up.
struct Network {
  std::string interface, address;
  int prefix = 32;  // bits of the address that name the network
  bool loopback = false;
};

/// The networks of this host. Throws CommError.
std::vector<Network> own_networks();

/// The addresses of those of `own` that `wanted` names: interfaces, addresses or networks, as in
/// "ib0" or "10.1.0.0/16", with commas between several.
std::vector<std::string> chosen_addresses(std::span<const Network> own, std::string_view wanted);

/// The addresses of `own` from which routes lead to a host that has these `addresses`. Those that
/// this host has too (as hosts that run containers do) lead nowhere.
std::vector<std::string> addresses_towards(std::span<const Network> own,
                                           std::span<const std::string> addresses);

/// "eth0 10.1.0.5/16, lo 127.0.0.1/8".
std::string to_text(std::span<const Network> networks);

}  // namespace tessera::guard
