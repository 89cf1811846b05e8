// What surviving ranks know of a failure, and how it is told to people.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace tessera::guard {

struct PeerReport {
  std::map<int, std::string> casualties;  // rank -> what became of it
  std::map<int, std::string> bystanders;  // rank -> what it was doing when it heard of them
};

/// One line for each casualty, and one for all ranks that were doing the same.
std::string to_text(const PeerReport& report);

/// Writes the report to stderr and gives it to `record`, if there is one. That gets a second to
/// keep it, because the process is about to leave and its file system may hang.
void publish(const PeerReport& report, const std::function<void(const std::string&)>& record);

}  // namespace tessera::guard
