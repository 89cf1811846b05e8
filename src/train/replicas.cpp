#include "train/replicas.hpp"

#include <algorithm>
#include <map>

#include "core/hash.hpp"

namespace tessera::train {
namespace {

/// This rank's copies of the slices of world rank `owner`, which others of its data group have too;
/// 0 where it has none.
std::uint64_t slice_hash(const ModelState& state, const Mesh& mesh, std::int64_t rank,
                         std::size_t unit, std::int64_t owner) {
  MeshPlace place = mesh.place_of(owner);
  const std::int64_t data = place.data;
  place.data = mesh.place_of(rank).data;
  return mesh.rank_of(place) == rank ? state.slice_hash(unit, data) : 0;
}

/// The first slice whose copies differ, by the world rank that owns it.
std::optional<std::int64_t> first_difference(const ModelState& state,
                                             const plan::PlanInputs& inputs,
                                             const comm::Control& control) {
  const auto slices = static_cast<std::size_t>(inputs.mesh.size());
  std::vector<std::uint64_t> largest(2 * slices, 0);  // hash and complement; 0 where no copy is
  for (std::size_t d = 0; d < slices; ++d) {
    std::vector<std::uint64_t> hashes;
    for (std::size_t u = 0; u < inputs.units.size(); ++u)
      hashes.push_back(
          slice_hash(state, inputs.mesh, control.rank(), u, static_cast<std::int64_t>(d)));
    if (std::ranges::count(hashes, 0U) == std::ssize(hashes)) continue;
    largest[d] = hash_bytes(std::as_bytes(std::span(hashes)));
    largest[slices + d] = ~largest[d];
  }
  control.max(largest);
  for (std::size_t d = 0; d < slices; ++d) {
    const std::uint64_t least = ~largest[slices + d];
    if (largest[d] != 0 && largest[d] != least) return static_cast<std::int64_t>(d);
  }
  return std::nullopt;
}

/// Every rank's hash on rank 0.
std::vector<std::uint64_t> gather(std::uint64_t own, const comm::Control& control) {
  std::vector<std::uint64_t> all;
  for (const std::string& text : control.gather(fmt::to_string(own)))
    all.push_back(std::stoull(text));
  return all;
}

/// Ranks whose hash is not that of the most; all that have one if there is no majority.
std::vector<int> minority(std::span<const std::uint64_t> hashes) {
  std::map<std::uint64_t, std::vector<int>> holders;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    if (hashes[rank] != 0) holders[hashes[rank]].push_back(static_cast<int>(rank));
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
  const auto bad = first_difference(state, inputs, control);
  if (!bad) return std::nullopt;

  std::string text;
  for (std::size_t u = 0; u < inputs.units.size(); ++u) {
    const auto of_unit = gather(slice_hash(state, inputs.mesh, control.rank(), u, *bad), control);
    const auto who = minority(of_unit);
    if (who.empty()) continue;
    const bool certain = who.size() < of_unit.size() - 1;
    text += fmt::format("{}{} {} {}", text.empty() ? "" : "; ", inputs.units[u].name,
                        certain ? "differs on rank" : "differs between ranks",
                        fmt::join(who, certain ? ", " : " and "));
  }
  return control.broadcast(text);
}

}  // namespace tessera::train
