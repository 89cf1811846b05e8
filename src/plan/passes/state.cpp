#include "plan/passes/state.hpp"

#include <algorithm>
#include <map>

#include "core/exact_sum.hpp"
#include "model/cached.hpp"
#include "plan/ir/channels.hpp"
#include "plan/passes/buffers.hpp"
#include "plan/passes/hops.hpp"
#include "plan/passes/layers.hpp"

namespace tessera::plan {

void set_place(Plan& plan, const PlanInputs& in, const MeshPlace& place) {
  plan.mesh = in.layout.mesh, plan.place = place;
  if (in.offload.uses(Location::disk)) plan.alignment = kDiskAlignment;
  for (std::size_t g = 0; g < kMeshGroups; ++g)
    plan.groups[g] = group_shape(in, place, static_cast<MeshGroup>(g));
}

/// Whether a step keeps something of its choices of experts in the unit.
static bool balances_in(const PlanInputs& in, const model::UnitDesc& unit, const PlanShape& shape) {
  const bool trains =
      shape.purpose == PlanPurpose::train || shape.purpose == PlanPurpose::train_snapshot;
  const auto by = unit.traits.balances;
  return by && (by == kernels::BalanceBy::shares || in.balance_rate > 0) && trains;
}

/// The flat elements of a unit behind its matrices that are made orthogonal, which come first.
static Range behind_matrices(const PlanInputs& in, const UnitState& s,
                             const model::UnitDesc& unit) {
  for (const zero::LayoutPiece& piece : s.layout.pieces) {
    const model::ParamDesc& p = unit.params[piece.parameter];
    if (!in.optimizer.terms_of(p.name, kind_of(unit, p)).orthogonal)
      return {piece.offset, s.layout.padded};
  }
  return {s.layout.padded, s.layout.padded};
}

/// Elements of a state tensor that a rank keeps of a unit: flat ones, but for what is of tensors.
static Range elements_of(const PlanInputs& in, const MeshPlace& place,
                         const optim::StateTensor& row, const UnitState& s,
                         const model::UnitDesc& unit) {
  const Range all = row.of_matrices ? Range{0, s.layout.padded} : behind_matrices(in, s, unit);
  switch (row.extent) {
    case optim::Extent::owned: return intersect(s.owned, all);
    case optim::Extent::shard: return intersect(s.slice, all);
    case optim::Extent::tensor: return {0, std::ssize(unit.params)};
    case optim::Extent::rank: return all;
    case optim::Extent::node:
      return {0, shards_between(gradient_route(in, place)) * s.layout.shard};
    case optim::Extent::whole: return gradient_in_blocks(in, unit) ? all : intersect(s.owned, all);
  }
  throw InternalError("an extent without a size");
}

Range saved_of(const optim::StateTensor& row, const UnitState& s, std::size_t index) {
  const Range& elements = s.kept[index].elements;
  return row.extent == optim::Extent::tensor ? elements : intersect(elements, s.slice);
}

std::vector<Range> counted_ranges(const PlanInputs& in, const Plan& plan, std::size_t unit,
                                  const zero::UnitLayout& layout) {
  // The last stage's copy of a tied matrix is the first stage's.
  if (on_both_ends(in, in.model.units[unit]) && plan.place.pipeline > 0) return {};
  return zero::counted(layout, slice_of(in, in.model.units[unit], layout, plan.place),
                       tensor_cut(in, plan.place));
}

namespace {

View add_persistent(Plan& plan, std::string name, BufferPurpose purpose, DType type,
                    std::int64_t elements, Location location = Location::device) {
  return buffer_view(add_buffer(plan, {.name = std::move(name),
                                       .purpose = purpose,
                                       .bytes = elements * size_of(type),
                                       .persistent = true,
                                       .location = location}),
                     type, elements);
}

/// What the host and a step tell each other.
void add_control(Plan& plan, const PlanInputs& in) {
  const model::ModelConfig& config = in.model.config;
  const std::int64_t layers = config.experts_before(config.layers),
                     counts = config.experts.count + 1,
                     statistics = in.statistics(plan.shape).count,
                     first = WordLayout::count(plan.shape.tallies),
                     behind = layers * counts + statistics * kExactSumWords,
                     most = layers * counts + in.most_statistics() * kExactSumWords;
  plan.words = add_persistent(plan, "words", BufferPurpose::control, DType::i64,
                              WordLayout::count(in.most_tallies) + most)
                   .range(0, first + behind);
  if (layers > 0)
    plan.choices = plan.words.range(first, layers * counts).reshaped({layers, counts});
  if (statistics > 0) {
    plan.statistics = plan.words.range(first + layers * counts, statistics * kExactSumWords)
                          .reshaped({statistics, kExactSumWords});
  }
  plan.scalars = add_persistent(plan, "scalars", BufferPurpose::control, DType::f32,
                                static_cast<std::int64_t>(kernels::StepScalar::count));
  plan.verdict = add_persistent(plan, "verdict", BufferPurpose::control, DType::f32,
                                static_cast<std::int64_t>(kernels::VerdictField::count));
  plan.update_scalars = in.offload.updates()
                            ? add_persistent(plan, "scalars of the update", BufferPurpose::control,
                                             DType::f32, plan.scalars.elements())
                            : plan.scalars;
}

/// The parameters in the type that they are kept in: a shard where they are gathered for use, else
/// whole.
void add_parameters(Plan& plan, const PlanInputs& in, const model::UnitDesc& unit, UnitState& s) {
  s.home = unit.traits.divided ? in.offload.parameters : Location::device;
  const model::Storage stored = in.stored(unit);
  s.codes = stored.codes;
  const bool all_at_once =
      s.codes && !s.sharding.parameters && in.state_for <= PlanPurpose::evaluate;
  s.slot = all_at_once ? s.layout.padded : s.layout.shard;
  const std::int64_t slot = stored.bytes(s.slot) / size_of(stored.type);
  const auto add = [&](std::int64_t slots) {
    return add_persistent(plan, unit.name + " parameters", BufferPurpose::parameters, stored.type,
                          slots * slot, s.home);
  };
  if (s.sharding.parameters) {
    s.own_shard = add(1);
  } else {
    s.parameters = add(s.layout.padded / s.slot);
    s.own_shard = all_at_once ? s.parameters : s.parameters.range(s.index() * slot, slot);
  }
}

/// Where a row lies. What is saved, but not as updates leave it, becomes a snapshot whole, which
/// what is on disks does not (saved_in_tiles).
Location location_of(const PlanInputs& in, const optim::StateTensor& row, bool of_errors,
                     const UnitState& s) {
  if (row.extent == optim::Extent::tensor) return Location::device;
  const Location wanted = of_errors ? in.offload.gradients : s.optimizer;
  const bool whole = row.saved && row.extent == optim::Extent::shard;
  return whole ? std::min(wanted, Location::host) : wanted;
}

/// The master weights and the optimizer's state, which training needs, gradients that the next step
/// updates by, and snapshots. The
/// owned parameters are the master weights in f32; else they are a copy of them. A frozen unit has
/// its parameters alone.
void add_kept(Plan& plan, const PlanInputs& in, const model::UnitDesc& unit, UnitState& s) {
  const auto rows = kept_tensors(in);
  s.kept.resize(rows.size());
  s.kept[kMasterRow].elements = s.owned;
  (in.type_of(unit) == DType::f32 || !s.trained ? s.kept[kMasterRow].live : s.copy) =
      s.owned == s.slice ? s.own_shard : s.parameters;
  const std::size_t errors = kMasterRow + 1 + in.optimizer.state.size();  // the first row of them
  for (std::size_t r = 0; r < rows.size() && in.state_for > PlanPurpose::evaluate; ++r) {
    if (!s.trained && r != kMasterRow) continue;
    if (r >= errors && !keeps_errors(in, unit)) continue;
    View* const of_errors[] = {&s.error_sum, &s.errors, &s.mean_error, &s.node_error};
    const BufferPurpose purpose = r == kMasterRow ? BufferPurpose::master
                                  : r < errors    ? BufferPurpose::optimizer
                                                  : BufferPurpose::errors;
    const Location location = location_of(in, rows[r], r >= errors, s);
    const Range elements = s.kept[r].elements = elements_of(in, plan.place, rows[r], s, unit);
    if (View& live = s.kept[r].live; !live && !elements.empty()) {
      live = add_persistent(plan, fmt::format("{} {}", unit.name, rows[r].name), purpose,
                            rows[r].type, elements.count(), location);
    }
    if (r >= errors) *of_errors[r - errors] = s.kept[r].live;
  }
  if (s.trained && in.offload.updates() && in.state_for > PlanPurpose::evaluate) {
    s.gradient = add_persistent(plan, unit.name + " gradient", BufferPurpose::gradients,
                                in.numerics.accumulate, s.owned.count(), in.offload.gradients);
  }
  for (std::size_t r = 0; r < rows.size() && in.state_for >= PlanPurpose::train_snapshot; ++r) {
    if (!rows[r].saved || !s.kept[r].live || saved_in_tiles(plan, s.kept[r])) continue;
    const Range saved = saved_of(rows[r], s, r);
    if (saved.empty()) continue;
    s.kept[r].snapshot = add_persistent(
        plan, fmt::format("{} snapshot of {}", unit.name, rows[r].name), BufferPurpose::snapshot,
        s.kept[r].live.type, s.kept_in(s.kept[r], saved).count(), Location::host);
  }
}

/// Keys and values of a block's own chunks.
std::vector<model::KvCache> block_caches(Plan& plan, const PlanInputs& in,
                                         const std::string& name) {
  const CacheInputs& cache = *in.cache;
  const model::TensorCut cut = tensor_cut(in, plan.place);
  std::vector<model::KvCache> caches;
  for (std::int64_t i = 0; i < cut.own(); ++i) {
    const auto add = [&](const char* what, std::int64_t columns) {
      if (columns == 0) return View{};
      return add_persistent(plan, fmt::format("{} {} of chunk {}", name, what, i),
                            BufferPurpose::cache, in.numerics.compute,
                            cache.pages * kernels::kPageTokens * columns, in.offload.caches_at())
          .reshaped({cache.pages, kernels::kPageTokens, columns});
    };
    const auto [k, v] = model::cached_columns(in.model.config, cut, i, cache.latents);
    const View keys = add(cache.latents ? "latents" : "keys", k);
    caches.push_back({.k = keys, .v = add("values", v)});
  }
  return caches;
}

/// Parameters do not change between passes: what one brings from other nodes is there for the next.
void add_shards_of_nodes(Plan& plan, const PlanInputs& in, std::vector<UnitState>& states) {
  const comm::Route route = gather_route(in, plan.place);
  const std::int64_t shards = shards_between(route);
  std::vector<std::int64_t> owners;
  const RankGroup ranks = comm::ranks_of(route.hops.back(), plan.group(MeshGroup::data));
  for (std::int64_t i = 0; i < shards; ++i) owners.push_back(ranks.rank(i));
  for (std::size_t u = 0; u < states.size(); ++u) {
    UnitState& s = states[u];
    const model::UnitDesc& unit = in.model.units[u];
    if (!s.held || s.parameters || shards == 0 || unit.traits.shared_by != MeshGroup::data)
      continue;
    if (unit.kind == model::UnitKind::value_head) continue;  // no part of generation
    s.of_node = add_persistent(plan, unit.name + " secondary shard", BufferPurpose::secondary,
                               DType::u8, shards * s.own_shard.span_bytes());
    plan.shares[u].of_node = buffer_of(s.of_node);
    plan.shares[u].of_node_owners = owners;
  }
}

/// What generation keeps of sequences and of parameters, and the logits that the host reads.
void add_caches(Plan& plan, const PlanInputs& in, std::vector<UnitState>& states) {
  for (const Layer& layer : model_layers(in.model.units)) {
    UnitState& first = at(states, static_cast<std::int64_t>(layer.units.front()));
    if (layer.kind == LayerKind::block && first.held)
      first.caches = block_caches(plan, in, in.model.units[layer.units.front()].name);
  }
  if (in.sharding.secondary) add_shards_of_nodes(plan, in, states);
  const std::int64_t chunks = in.layout.tensor_chunks,
                     columns = ceil_div(in.model.config.padded_outputs(), chunks);
  const View logits = add_persistent(plan, "logits", BufferPurpose::control, DType::f32,
                                     in.cache->slots * chunks * columns);
  if (plan.shape.purpose != PlanPurpose::generate) return;
  const std::int64_t rows = chunks * plan.shape.micro, all = plan.shape.micro_batches * rows;
  TESSERA_CHECK(plan.shape.micro_batches * plan.shape.micro <= in.cache->slots,
                "{} x {} sequences in {} slots", plan.shape.micro_batches, plan.shape.micro,
                in.cache->slots);
  plan.logits = logits.range(0, all * columns).reshaped({plan.shape.micro_batches, rows, columns});
}

/// What the host reads of targets.
void add_scores(Plan& plan, const PlanInputs& in) {
  const View all =
      add_persistent(plan, "scores", BufferPurpose::control, DType::f32, in.most_scores);
  if (plan.shape.scores == Scores::none) return;
  const std::int64_t each = in.losses(plan.shape), batches = plan.shape.micro_batches;
  TESSERA_CHECK(batches * each <= in.most_scores, "{} x {} scores of {}", batches, each,
                in.most_scores);
  plan.scores = all.range(0, batches * each).reshaped({batches, each});
}

/// How a unit is kept is possible.
void check_storage(const PlanInputs& in, const model::UnitDesc& unit) {
  TESSERA_CHECK(!unit.traits.trained || !unit.traits.stored,
                "{} is trained, but kept in another type than it is used in", unit.name);
  const auto& codes = in.stored(unit).codes;
  TESSERA_CHECK(!codes || unit.traits.block == codes->block,
                "{} is kept as codes, but not in blocks of them", unit.name);
}

/// Says which units' optimizer state is offloaded: the last ones, which have longest until forward
/// wants what their updates make, until they are the share that is asked for (Twin-Flow of
/// DeepSpeed's ZeRO-Offload++, 2023).
void offload_optimizer(const PlanInputs& in, std::vector<UnitState>& states) {
  double all = 0, elsewhere = 0;
  for (const UnitState& s : states) all += s.trained ? static_cast<double>(s.owned.count()) : 0;
  for (std::size_t u = states.size(); u-- > 0;) {
    UnitState& s = states[u];
    if (!s.trained || elsewhere >= in.offload.optimizer_share * all) continue;
    s.optimizer = in.offload.optimizer;
    elsewhere += static_cast<double>(s.owned.count());
  }
}

}  // namespace

std::vector<UnitState> add_state(Plan& plan, const PlanInputs& in) {
  add_control(plan, in);
  const auto held = held_units(in, plan.place.pipeline);
  const bool by_nodes = in.optimizer.momentum && shards_between(gradient_route(in, plan.place)) > 0;
  std::vector<UnitState> states(in.model.units.size());
  plan.shares.resize(in.model.units.size());
  for (std::size_t u = 0; u < states.size(); ++u) {
    if (!held[u]) continue;
    const model::UnitDesc& unit = in.model.units[u];
    UnitState& s = states[u];
    TESSERA_CHECK(std::ranges::any_of(kChannelRows,
                                      [&](const ChannelRow& row) {
                                        return row.carries(unit.traits.shared_by, Stream::reduce);
                                      }),
                  "no channel for gradients that are summed over the group {}",
                  enum_word(unit.traits.shared_by));
    check_storage(in, unit);
    s.held = true;
    s.trained = unit.traits.trained;
    s.layout = unit_layout(in, unit, plan.place);
    if (unit.traits.divided)
      s.sharding = sharding_of(in.sharding.stage, s.layout.padded / s.layout.shard);
    s.slice = slice_of(in, unit, s.layout, plan.place);
    s.owned = (s.trained ? s.sharding.states : s.sharding.parameters) ? s.slice
                                                                      : Range{0, s.layout.padded};
    const bool blocks = gradient_in_blocks(in, unit, plan.shape),
               momentum = blocks && in.optimizer.momentum;
    plan.shares[u] = {
        .trained = s.trained,
        .errors = blocks && keeps_errors(in, unit),
        .momentum = momentum,
        .by_nodes = momentum && by_nodes,
        .factors = s.trained && in.optimizer.momentum && in.optimizer.momentum->factors.has_value(),
        .parts = s.layout.padded / s.layout.shard,
        .shard = s.layout.shard,
        .codes = in.stored(unit).codes};
    for (const Range& part : counted_ranges(in, plan, u, s.layout))
      plan.shares[u].counted += part.count();
  }
  offload_optimizer(in, states);
  const auto rows = kept_tensors(in);
  for (std::size_t u = 0; u < states.size(); ++u) {
    if (!states[u].held) continue;
    add_parameters(plan, in, in.model.units[u], states[u]);
    plan.shares[u].slot = states[u].slot;
    if (balances_in(in, in.model.units[u], plan.shape))
      plan.shares[u].balance = buffer_of(states[u].parameters);
    add_kept(plan, in, in.model.units[u], states[u]);
    for (std::size_t r = 0; r < rows.size(); ++r)
      plan.shares[u].kept.push_back(saved_of(rows[r], states[u], r).count());
  }
  if (in.cache) add_caches(plan, in, states);
  if (in.most_scores > 0) add_scores(plan, in);
  if (const std::int64_t classes = in.model.config.head.labels;
      classes > 0 && !in.preference && plan.shape.purpose == PlanPurpose::evaluate) {
    // Behind all others, so that those are where they are in the plans without it.
    plan.confusion =
        add_persistent(plan, "confusion", BufferPurpose::control, DType::i64, classes * classes)
            .reshaped({classes, classes});
  }
  return states;
}

std::vector<FirstUse> first_uses(const Plan& plan, const std::vector<UnitState>& states) {
  std::map<BufferId, std::size_t> unit_of;
  for (std::size_t u = 0; u < states.size(); ++u) {
    if (states[u].trained) unit_of[buffer_of(states[u].own_shard)] = u;
  }
  std::vector<FirstUse> uses;
  for (std::size_t i = 0; i < plan.ops.size() && !unit_of.empty(); ++i) {
    for (const BufferUse& use : uses_of(plan.ops[i])) {
      const auto it = unit_of.find(use.buffer);
      if (it == unit_of.end()) continue;
      uses.push_back({it->second, i});
      unit_of.erase(it);
    }
  }
  for (const auto& [buffer, unit] : unit_of) uses.push_back({unit, plan.ops.size()});
  return uses;
}

}  // namespace tessera::plan
