#include "train/replicas.hpp"

#include <algorithm>
#include <cstring>
#include <map>

namespace tessera::train {
namespace {

using Hashes = std::vector<std::uint64_t>;

/// Every rank's hashes on rank 0.
std::vector<Hashes> gather(const Hashes& own, const comm::Control& control) {
  std::string bytes(own.size() * sizeof(std::uint64_t), '\0');
  std::memcpy(bytes.data(), own.data(), bytes.size());
  std::vector<Hashes> all;
  for (const std::string& text : control.gather(bytes)) {
    all.emplace_back(own.size());
    std::memcpy(all.back().data(), text.data(), bytes.size());
  }
  return all;
}

/// Ranks whose hash of column `column` is not that of the most; all that have one if there is no
/// majority.
std::vector<int> minority(const std::vector<Hashes>& ranks, std::size_t column) {
  std::map<std::uint64_t, std::vector<int>> holders;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank][column] != 0) holders[ranks[rank][column]].push_back(static_cast<int>(rank));
  }
  if (holders.size() < 2) return {};
  const auto most = std::max_element(holders.begin(), holders.end(), [](auto& a, auto& b) {
    return a.second.size() < b.second.size();
  });
  const auto ties = std::count_if(holders.begin(), holders.end(), [&](const auto& h) {
    return h.second.size() == most->second.size();
  });
  std::vector<int> others;
  for (const auto& [hash, who] : holders) {
    if (ties > 1 || hash != most->first) others.insert(others.end(), who.begin(), who.end());
  }
  std::sort(others.begin(), others.end());
  return others;
}

}  // namespace

std::optional<std::string> find_differing_replicas(const ModelState& state,
                                                   const plan::PlanInputs& inputs,
                                                   const comm::Control& control) {
  const auto all = gather(state.slice_hashes(-1), control);
  std::int64_t bad = -1;
  for (std::size_t d = 0; !all.empty() && bad < 0 && d < all.front().size(); ++d) {
    if (!minority(all, d).empty()) bad = static_cast<std::int64_t>(d);
  }
  bad = control.max(bad);
  if (bad < 0) return std::nullopt;

  std::string text;
  for (std::size_t u = 0; u < inputs.units.size(); ++u) {
    const auto of_unit = gather(state.slice_hashes(static_cast<std::int64_t>(u)), control);
    const auto who =
        of_unit.empty() ? std::vector<int>{} : minority(of_unit, static_cast<std::size_t>(bad));
    if (who.empty()) continue;
    const bool certain = who.size() < of_unit.size() - 1;
    text += fmt::format("{}{} {} {}", text.empty() ? "" : "; ", inputs.units[u].name,
                        certain ? "differs on rank" : "differs between ranks",
                        fmt::join(who, certain ? ", " : " and "));
  }
  return control.broadcast(text);
}

}  // namespace tessera::train
