#include "train/guards/watch.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <random>
#include <sstream>

#include "core/regular_file.hpp"
#include "guard/networks.hpp"
#include "train/report/run_directory.hpp"

namespace tessera::train {
namespace {

/// Whichever rank reports: appending whole lines needs no lock.
std::function<void(const std::string&)> keep_report(const std::filesystem::path& directory) {
  return [directory](const std::string& report) {
    const auto append = [](const std::filesystem::path& path, const std::string& text) {
      const int file = open_regular(path, O_WRONLY | O_APPEND).descriptor;
      if (file < 0) return;
      [[maybe_unused]] const ssize_t n = ::write(file, text.data(), text.size());
      ::close(file);
    };
    append(directory / "log.txt", stamped(report));
    std::istringstream lines(report);
    std::string entries;
    for (std::string line; std::getline(lines, line);) entries += logbook_bullet() + line + "\n";
    append(directory / "logbook.md", entries);
  };
}

/// One line a rank, in rank order.
std::vector<std::string> share_lines(const comm::Control& control, const std::string& own) {
  std::string all;
  for (const std::string& line : control.gather(own)) all += line + "\n";
  std::istringstream text(control.broadcast(all));
  text.exceptions(std::ios::badbit);  // throws if memory runs out
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

/// The addresses of the networks that `said_by` (a key or a variable) names.
std::vector<std::string> addresses_named(const std::vector<guard::Network>& own,
                                         const std::string& wanted, const std::string& said_by) {
  auto addresses = guard::chosen_addresses(own, wanted);
  if (!addresses.empty()) return addresses;
  throw DeckError(fmt::format(
      "{} = \"{}\" names no network of this host, which has {} (give an interface, an IPv4 address "
      "or a network such as 10.1.0.0/16 of each node; several with commas between)",
      said_by, wanted, to_text(own)));
}

/// The addresses of this host that other hosts can have a route to, with spaces between.
std::string addresses_to_tell(const std::vector<guard::Network>& own) {
  std::string line;
  for (const guard::Network& network : own) {
    if (!network.loopback) line += (line.empty() ? "" : " ") + network.address;
  }
  return line;
}

/// The addresses on which this rank waits for the one before it, and for nobody else: by
/// `guard.interface`; else loopback, if that rank is on this node; else by MPI's own setting; else
/// by the route to that rank's node.
std::vector<std::string> addresses_to_listen_on(const deck::LoadedDeck& loaded, const Job& job,
                                                const std::vector<guard::Network>& own,
                                                std::span<const std::string> told) {
  if (const auto& interface = loaded.deck.guard.interface)
    return addresses_named(own, *interface, loaded.where("guard.interface") + ": guard.interface");
  const auto before =
      static_cast<std::size_t>((job.mpi.rank() + job.mpi.size() - 1) % job.mpi.size());
  const auto& node_of = job.mpi.node_of();
  if (node_of[before] == node_of[static_cast<std::size_t>(job.mpi.rank())]) return {"127.0.0.1"};
  if (const char* wanted = std::getenv("OMPI_MCA_btl_tcp_if_include")) {
    if (auto addresses = guard::chosen_addresses(own, wanted); !addresses.empty()) return addresses;
  }
  std::istringstream words(told[before]);
  words.exceptions(std::ios::badbit);  // throws if memory runs out
  const std::vector<std::string> theirs{std::istream_iterator<std::string>(words), {}};
  auto addresses = guard::addresses_towards(own, theirs);
  if (!addresses.empty()) return addresses;
  const auto is_own = [&](const std::string& address) {
    return std::ranges::find(own, address, &guard::Network::address) != own.end();
  };
  if (std::ranges::all_of(theirs, is_own)) return {"127.0.0.1"};  // one host under two names
  throw CommError(fmt::format(
      "watchdog: no route to the node of rank {}, whose addresses are \"{}\", from this one, which "
      "has {}: name a network that all nodes share by guard.interface",
      before, told[before], to_text(own)));
}

}  // namespace

void watch_peers(const deck::LoadedDeck& loaded, const Job& job,
                 const std::filesystem::path& directory) {
  const comm::Control& control = job.control;
  const std::chrono::seconds hang_timeout(loaded.deck.guard.hang_timeout.count);
  if (control.size() < 2 || hang_timeout.count() == 0 || job.watchdog.watching()) return;
  std::vector<guard::Network> own;
  control.together([&] { own = guard::own_networks(); });
  const auto told = share_lines(control, addresses_to_tell(own));
  std::string line;
  control.together(
      [&] { line = job.watchdog.listen(addresses_to_listen_on(loaded, job, own, told)); });
  const auto endpoints = share_lines(control, line);
  std::random_device random;
  const std::uint64_t dice = std::uint64_t{random()} << 32 | random();
  const std::uint64_t secret = std::stoull(control.broadcast(std::to_string(dice)));
  control.together([&] { job.watchdog.join(endpoints, secret); });
  job.watchdog.watch({.hang_timeout = hang_timeout, .record = keep_report(directory)},
                     [&whereabouts = job.whereabouts] { return whereabouts.activity(); });
}

}  // namespace tessera::train
