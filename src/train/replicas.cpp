#include "train/replicas.hpp"

#include <algorithm>
#include <map>

#include "core/hash.hpp"
#include "plan/layers.hpp"

namespace tessera::train {
namespace {

/// Everything that ranks hold alike has a key: slices of data ranks by the world rank that owns
/// them, then what tensor ranks hold whole by the first of them, then tied matrices by the first
/// stage's rank.
enum class Kind : std::int64_t { slice, whole, tied, count };

struct Copies {
  const ModelState& state;
  const plan::PlanInputs& inputs;
  std::int64_t rank;

  std::int64_t keys() const { return static_cast<std::int64_t>(Kind::count) * inputs.mesh.size(); }

  /// Hash of this rank's copy of what the key stands for in a unit; 0 where it has none.
  std::uint64_t hash(std::size_t unit, std::int64_t key) const {
    const Mesh& mesh = inputs.mesh;
    const MeshPlace owner = mesh.place_of(key % mesh.size());
    MeshPlace own = mesh.place_of(rank);
    switch (static_cast<Kind>(key / mesh.size())) {
      case Kind::slice: {
        own.data = owner.data;
        return own == owner ? state.slice_hash(unit, owner.data) : 0;
      }
      case Kind::whole:
        own.tensor = 0;
        return mesh.tensor > 1 && own == owner
                   ? state.unit_hash(unit, ModelState::Part::whole_parameters)
                   : 0;
      case Kind::tied:
        own.pipeline = 0;
        return plan::on_both_ends(inputs, unit) && own == owner
                   ? state.unit_hash(unit, ModelState::Part::everything)
                   : 0;
      case Kind::count: break;
    }
    return 0;
  }
};

/// The first key whose copies differ.
std::optional<std::int64_t> first_difference(const Copies& copies, const comm::Control& control) {
  const auto keys = static_cast<std::size_t>(copies.keys());
  std::vector<std::uint64_t> largest(2 * keys, 0);  // hash and complement; 0 where no copy is
  for (std::size_t k = 0; k < keys; ++k) {
    std::vector<std::uint64_t> hashes;
    for (std::size_t u = 0; u < copies.inputs.units.size(); ++u)
      hashes.push_back(copies.hash(u, static_cast<std::int64_t>(k)));
    if (std::ranges::count(hashes, 0U) == std::ssize(hashes)) continue;
    largest[k] = hash_bytes(std::as_bytes(std::span(hashes)));
    largest[keys + k] = ~largest[k];
  }
  control.max(largest);
  for (std::size_t k = 0; k < keys; ++k) {
    const std::uint64_t least = ~largest[keys + k];
    if (largest[k] != 0 && largest[k] != least) return static_cast<std::int64_t>(k);
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
  const Copies copies{.state = state, .inputs = inputs, .rank = control.rank()};
  const auto bad = first_difference(copies, control);
  if (!bad) return std::nullopt;

  std::string text;
  for (std::size_t u = 0; u < inputs.units.size(); ++u) {
    const auto of_unit = gather(copies.hash(u, *bad), control);
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
