#include "train/guards/replicas.hpp"

#include <algorithm>
#include <map>

#include "core/hash.hpp"
#include "plan/passes/layers.hpp"

namespace tessera::train {
namespace {

/// Each set of copies has a key: a data rank's slice has the world rank that owns it; what tensor
/// ranks hold whole has the first of them, a tied matrix has the first stage's rank. With several
/// data ranks and a ZeRO stage above 0, each data rank has a set of its own, for its shard. Units
/// of whose slices other ranks have copies are in other sets: experts that data ranks divide, and
/// frozen units, of which those who own no slice have copies too.
enum class Kind : std::int64_t {
  slice,
  slice_of_experts,
  frozen_slice,
  frozen_slice_of_experts,
  whole,
  tied,
  count
};
Kind slice_kind(const model::UnitTraits& traits) {
  const bool of_experts = traits.shared_by == MeshGroup::replicas;
  if (traits.trained) return of_experts ? Kind::slice_of_experts : Kind::slice;
  return of_experts ? Kind::frozen_slice_of_experts : Kind::frozen_slice;
}

struct Copies {
  const ModelState& state;
  const plan::PlanInputs& inputs;
  std::int64_t rank;

  std::int64_t keys() const {
    return static_cast<std::int64_t>(Kind::count) * inputs.layout.mesh.size();
  }

  /// This rank's copy in the set that the key stands for, of one unit.
  ModelState::Copy of(std::size_t unit, std::int64_t key) const {
    const Mesh& mesh = inputs.layout.mesh;
    const MeshPlace owner = mesh.place_of(key % mesh.size());
    MeshPlace own = mesh.place_of(rank);
    const Kind kind = static_cast<Kind>(key / mesh.size());
    switch (kind) {
      case Kind::slice:
      case Kind::slice_of_experts:
      case Kind::frozen_slice:
      case Kind::frozen_slice_of_experts: {
        const model::UnitTraits& traits = inputs.model.units[unit].traits;
        if (kind != slice_kind(traits)) break;
        const RankGroup sharers = mesh.group_of(rank, traits.shared_by);
        const std::int64_t index = sharers.index(key % mesh.size());
        if (index >= 0 && index < sharers.count && sharers.rank(index) == key % mesh.size())
          return state.slice_copy(unit, index);
        break;
      }
      case Kind::whole: {
        own.tensor = 0;
        if (mesh.tensor > 1 && own == owner)
          return state.owned_copy(unit, ModelState::Part::whole_pieces);
        break;
      }
      case Kind::tied: {
        own.pipeline = 0;
        if (plan::on_both_ends(inputs, inputs.model.units[unit]) && own == owner)
          return state.owned_copy(unit, ModelState::Part::everything);
        break;
      }
      case Kind::count: break;
    }
    return {};
  }

  /// The copies of all units together.
  ModelState::Copy of(std::int64_t key) const {
    ModelState::Copy all;
    for (std::size_t u = 0; u < inputs.model.units.size(); ++u) {
      const ModelState::Copy copy = of(u, key);
      if (copy.elements == 0) continue;
      all.elements += copy.elements;
      all.hash = Hasher().add(all.hash).add(u).add(copy.hash).value();
    }
    return all;
  }
};

struct Compared {
  std::int64_t elements = 0;
  std::optional<std::int64_t> different;  // the first key whose copies differ
};

Compared compare_all(const Copies& copies, const comm::Control& control) {
  // Reduced over the ranks that hold a copy: the greatest of each word and, through its complement,
  // the least.
  struct Words {
    std::uint64_t hash, hash_complement, holder, holder_complement, elements;
  };
  constexpr std::size_t kWords = sizeof(Words) / sizeof(std::uint64_t);
  std::vector<Words> keys(static_cast<std::size_t>(copies.keys()));
  for (std::size_t k = 0; k < keys.size(); ++k) {
    const ModelState::Copy copy = copies.of(static_cast<std::int64_t>(k));
    if (copy.elements == 0) continue;
    const auto holder = static_cast<std::uint64_t>(copies.rank);
    keys[k] = {copy.hash, ~copy.hash, holder, ~holder, static_cast<std::uint64_t>(copy.elements)};
  }
  control.max({reinterpret_cast<std::uint64_t*>(keys.data()), keys.size() * kWords});
  Compared result;
  for (std::size_t k = 0; k < keys.size(); ++k) {
    const Words& w = keys[k];
    if (w.elements == 0 || w.holder == ~w.holder_complement) continue;  // of one rank
    result.elements += static_cast<std::int64_t>(w.elements);
    if (!result.different && w.hash != ~w.hash_complement)
      result.different = static_cast<std::int64_t>(k);
  }
  return result;
}

/// Every rank's hash, on rank 0; nothing for a rank that has no copy.
std::vector<std::optional<std::uint64_t>> gather(const ModelState::Copy& own,
                                                 const comm::Control& control) {
  std::vector<std::optional<std::uint64_t>> all;
  const std::string mine = own.elements > 0 ? fmt::to_string(own.hash) : "";
  for (const std::string& text : control.gather(mine))
    all.emplace_back(text.empty() ? std::nullopt : std::optional(std::stoull(text)));
  return all;
}

/// Ranks whose hash differs from the majority's; all that have one if there is no majority.
std::vector<int> minority(std::span<const std::optional<std::uint64_t>> hashes) {
  std::map<std::uint64_t, std::vector<int>> holders;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    if (hashes[rank]) holders[*hashes[rank]].push_back(static_cast<int>(rank));
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

bool keeps_copies(const plan::PlanInputs& inputs) {
  const Mesh& mesh = inputs.layout.mesh;
  // Where states are in shards, a slice is compared among the ranks that do not own it.
  const Sharding sharding = inputs.sharded();
  const bool whole = std::ranges::any_of(  // frozen units are on all that share them
      inputs.model.units, [](const model::UnitDesc& unit) { return !unit.traits.trained; });
  const bool everywhere = std::ranges::any_of(
      inputs.model.units, [](const model::UnitDesc& unit) { return !unit.traits.divided; });
  const bool data = (everywhere && mesh.data > 1) ||
                    (!sharding.parameters && mesh.data > (sharding.states && !whole ? 2 : 1));
  const bool ends = mesh.pipeline > 1 && inputs.model.config.tied_embeddings;
  return data || mesh.tensor > 1 || ends;
}

ReplicaComparison compare_copies(const ModelState& state, const plan::PlanInputs& inputs,
                                 const comm::Control& control) {
  const Copies copies{.state = state, .inputs = inputs, .rank = control.rank()};
  const Compared compared = compare_all(copies, control);
  if (!compared.different) return {.elements = compared.elements, .difference = std::nullopt};

  std::string text;
  for (std::size_t u = 0; u < inputs.model.units.size(); ++u) {
    const auto of_unit = gather(copies.of(u, *compared.different), control);
    const auto who = minority(of_unit);
    if (who.empty()) continue;
    const auto holders =
        std::ranges::count_if(of_unit, [](const auto& h) { return h.has_value(); });
    const bool certain = std::ssize(who) < holders;
    text += fmt::format("{}{} {} {}", text.empty() ? "" : "; ", inputs.model.units[u].name,
                        certain ? "differs on rank" : "differs between ranks",
                        fmt::join(who, certain ? ", " : " and "));
  }
  return {.elements = compared.elements, .difference = control.broadcast(text)};
}

}  // namespace tessera::train
