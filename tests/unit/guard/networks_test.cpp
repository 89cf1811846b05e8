// Which of a host's addresses a list of interfaces and networks means, and which lead to a host.
#include "guard/networks.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace tessera::guard {
namespace {

using Addresses = std::vector<std::string>;

const std::vector<Network> kHost{
    {.interface = "lo", .address = "127.0.0.1", .prefix = 8, .loopback = true},
    {.interface = "eth0", .address = "192.168.1.5", .prefix = 24},
    {.interface = "ib0", .address = "10.1.2.3", .prefix = 16},
    {.interface = "ib0", .address = "10.9.2.3", .prefix = 16}};

TEST(Networks, AreChosenByInterfaceAddressAndPrefix) {
  EXPECT_EQ(chosen_addresses(kHost, "eth0"), Addresses{"192.168.1.5"});
  EXPECT_EQ(chosen_addresses(kHost, "ib0"), (Addresses{"10.1.2.3", "10.9.2.3"}));
  EXPECT_EQ(chosen_addresses(kHost, "10.9.2.3"), Addresses{"10.9.2.3"});
  EXPECT_EQ(chosen_addresses(kHost, "10.1.0.0/16"), Addresses{"10.1.2.3"});
  EXPECT_EQ(chosen_addresses(kHost, "10.0.0.0/8,lo"),
            (Addresses{"10.1.2.3", "10.9.2.3", "127.0.0.1"}));
  EXPECT_EQ(chosen_addresses(kHost, "0.0.0.0/0").size(), kHost.size());
  EXPECT_EQ(chosen_addresses(kHost, "ib0,10.1.2.3/32").size(), 2U) << "each once";
  for (const char* none : {"", "ib", "ib1", "10.2.0.0/16", "10.1.2.3/33", "10.1.2.3/", "10.1/16",
                           "10.1.2.3/16x", "10.1.2.4/32"}) {
    EXPECT_TRUE(chosen_addresses(kHost, none).empty()) << none;
  }
}

TEST(Networks, OfThisHostHaveLoopback) {
  const auto own = own_networks();
  const auto loopback = std::ranges::find(own, "127.0.0.1", &Network::address);
  ASSERT_NE(loopback, own.end());
  EXPECT_TRUE(loopback->loopback);
  EXPECT_EQ(loopback->prefix, 8);
  EXPECT_NE(to_text(own).find("127.0.0.1/8"), std::string::npos);
}

TEST(Networks, TheWayToAHostIsTheRoutes) {
  const std::vector<Network> loopback{kHost.front()};
  EXPECT_EQ(addresses_towards(loopback, Addresses{"127.0.0.9", "127.0.0.8"}),
            Addresses{"127.0.0.1"});
  EXPECT_TRUE(addresses_towards(loopback, Addresses{"127.0.0.1"}).empty()) << "this host's own";
  EXPECT_TRUE(addresses_towards(loopback, Addresses{"nonsense"}).empty());
}

}  // namespace
}  // namespace tessera::guard
