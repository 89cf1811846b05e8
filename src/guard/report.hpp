// What the survivors know of a peer's failure, as its reader wants it.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace tessera::guard {

struct PeerReport {
  std::map<int, std::string> casualties;  // rank -> what became of it
  std::map<int, std::string> bystanders;  // rank -> what it was doing when it heard of them
};

/// One line a casualty, one for all ranks that were doing the same.
std::string to_text(const PeerReport& report);

/// Writes it to stderr and appends it to `log`, if that has a name; a file system that hangs is
/// given up after a second, and errors go unnoticed: the process is about to leave.
void publish(const PeerReport& report, const std::filesystem::path& log);

}  // namespace tessera::guard
