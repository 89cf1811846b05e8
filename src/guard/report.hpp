// What the survivors know of a peer's failure, as its reader wants it.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace tessera::guard {

struct PeerReport {
  std::map<int, std::string> casualties;  // rank -> what became of it
  std::map<int, std::string> bystanders;  // rank -> what it was doing when it heard of them
};

/// One line a casualty, one for all ranks that were doing the same.
std::string to_text(const PeerReport& report);

/// Writes it to stderr and gives it to `record`, if there is one, which gets a second to keep it:
/// the process is about to leave.
void publish(const PeerReport& report, const std::function<void(const std::string&)>& record);

}  // namespace tessera::guard
