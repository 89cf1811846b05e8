#include "guard/report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <vector>

#include "core/thread.hpp"

namespace tessera::guard {
namespace {

/// "0-2, 5".
std::string ranges(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (!text.empty()) text += ", ";
    text += fmt::to_string(ranks[i]);
    if (end > i + 1) text += fmt::format("-{}", ranks[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace

std::string to_text(const PeerReport& report) {
  std::string text;
  std::map<std::string, std::vector<int>> by_fate, by_activity;
  for (const auto& [rank, fate] : report.casualties) by_fate[fate].push_back(rank);
  for (const auto& [fate, ranks] : by_fate) {
    text += fmt::format("tessera: rank{} {} {} lost: {}\n", ranks.size() > 1 ? "s" : "",
                        ranges(ranks), ranks.size() > 1 ? "are" : "is", fate);
  }
  for (const auto& [rank, doing] : report.bystanders) by_activity[doing].push_back(rank);
  for (const auto& [doing, ranks] : by_activity) {
    text +=
        fmt::format("tessera: rank{} {} leave{} (exit code 5) from {}\n",
                    ranks.size() > 1 ? "s" : "", ranges(ranks), ranks.size() > 1 ? "" : "s", doing);
  }
  return text;
}

void publish(const PeerReport& report, const std::function<void(const std::string&)>& record) {
  const std::string text = to_text(report);
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
  if (!record) return;
  try_within_a_second([text, record] { record(text); });
}

}  // namespace tessera::guard
