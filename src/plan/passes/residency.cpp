#include "plan/passes/residency.hpp"

#include <algorithm>
#include <map>

#include "plan/passes/blocks.hpp"
#include "plan/passes/buffers.hpp"

namespace tessera::plan {
namespace {

Op gather_op(OpKind kind, std::size_t unit, const PlanInputs& in, LegCall call) {
  return {.kind = kind,
          .stream = row_of(call.leg).of_gathers,
          .group = in.model.units[unit].traits.shared_by,
          .unit = static_cast<std::int32_t>(unit),
          .call = std::move(call.call),
          .waits = {}};
}

/// Whether other ranks update parts of these parameters.
bool publishes(const UnitState& s) { return s.trained && s.sharding.publishes(); }
/// Whether they are published on the device where they live. Others are when they first come there.
bool publishes_in_place(const UnitState& s) { return publishes(s) && s.home == Location::device; }

/// Parameters do not change between passes of generation: what one that renews them has brought
/// from other ranks is there for the others.
bool has_all_from_before(const Plan& plan) {
  return plan.shape.purpose == PlanPurpose::generate && !plan.shape.renews;
}

/// The first op of each visit that has any.
std::map<std::int32_t, std::size_t> visit_starts(const Plan& plan) {
  std::map<std::int32_t, std::size_t> starts;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) starts.try_emplace(plan.ops[i].visit, i);
  return starts;
}

/// ZeRO-1, 2. Shards and full buffers are there when the step starts, so the gather stream
/// publishes one unit after another while the first visits compute; unless the shards are updated
/// beside them: then each is published a few visits before its use.
void publish(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states) {
  if (has_all_from_before(plan) || std::ranges::none_of(states, publishes_in_place)) return;
  const auto starts = visit_starts(plan);
  RoutesOfUnits routes(in, plan.place);
  TurnStaging between("parameters between nodes");
  Insertions insertions;
  for (const auto& [unit, op] : first_uses(plan, states)) {
    const UnitState& s = states[unit];
    if (!publishes_in_place(s) || op == plan.ops.size()) continue;
    const std::int64_t ahead = std::max<std::int64_t>(1, in.sharding.prefetch),
                       visit = in.offload.updates() ? plan.ops[op].visit - ahead : 0;
    const std::size_t at =
        visit <= 0 ? 0 : starts.lower_bound(static_cast<std::int32_t>(visit))->second;
    for (LegCall& call : gather_over(plan, routes.of(unit).gathers,
                                     {.shard = s.own_shard, .full = s.parameters}, between))
      insertions.before(at, gather_op(OpKind::publish, unit, in, std::move(call)));
  }
  insertions.apply(plan.ops);
}

/// Units by the placeholders that scheduled ops read them from.
using UnitOfWindow = std::map<BufferId, std::size_t>;
UnitOfWindow units_of_windows(const Scheduled& scheduled) {
  UnitOfWindow unit_of;
  for (std::size_t u = 0; u < scheduled.windows.size(); ++u) {
    if (scheduled.windows[u] >= 0) unit_of[scheduled.windows[u]] = u;
  }
  return unit_of;
}

/// A run of uses of a unit that one gather, and one window, serves.
struct Residence {
  std::size_t unit = 0;
  std::int32_t first_visit = 0, last_visit = 0;
  bool first_of_unit = true;
  BufferId window = -1;
};

/// How many visits before its first use a window begins to be filled. What no other rank has a part
/// of comes from where it lives; else the shard does (tiers), and is gathered.
std::int64_t prefetch_of(const PlanInputs& in, const UnitState& s) {
  return s.parameters && s.home != Location::device ? in.offload.ahead : in.sharding.prefetch;
}

/// By unit, in the order of visits.
using Residences = std::vector<std::vector<Residence>>;
Residences residences_of(const Plan& plan, const PlanInputs& in,
                         const std::vector<UnitState>& states, const UnitOfWindow& unit_of) {
  Residences residences(states.size());
  for (const Op& op : plan.ops) {
    for (const BufferUse& use : uses_of(op)) {
      const auto it = unit_of.find(use.buffer);
      if (it == unit_of.end()) continue;
      auto& list = residences[it->second];
      const std::int64_t prefetch = prefetch_of(in, states[it->second]);
      // Uses at most prefetch + 1 visits apart share a window. Keeping it costs no more memory than
      // a second one, whose gather would begin as soon as the first use ends, or before.
      if (!list.empty() && op.visit - list.back().last_visit <= prefetch + 1) {
        list.back().last_visit = op.visit;
      } else {
        list.push_back({.unit = it->second,
                        .first_visit = op.visit,
                        .last_visit = op.visit,
                        .first_of_unit = list.empty()});
      }
    }
  }
  return residences;
}

/// Gives each residence a window like its unit's placeholder.
void add_windows(Plan& plan, const Scheduled& scheduled, Residences& residences) {
  for (std::vector<Residence>& of_unit : residences) {
    for (Residence& r : of_unit) {
      const Buffer& placeholder = plan.buffer(scheduled.windows[r.unit]);
      r.window =
          add_buffer(plan, placeholder.name, BufferPurpose::gather_window, placeholder.bytes);
    }
  }
}

/// What was to read a placeholder reads the window of the residence that its visit is in.
void read_windows(Plan& plan, const UnitOfWindow& unit_of, const Residences& residences) {
  std::vector<std::size_t> current(residences.size());  // residence of each unit: visits only grow
  for (Op& op : plan.ops) {
    each_view(op.call, [&](View& view, kernels::Access) {
      const auto it = unit_of.find(buffer_of(view));
      if (it == unit_of.end()) return;
      std::size_t& at = current[it->second];
      while (residences[it->second][at].last_visit < op.visit) ++at;
      view.data = symbolic(residences[it->second][at].window, offset_of(view));
    });
  }
}

/// What fills windows. Of a unit that is gathered several times within a step the ranks of a node
/// keep what the first gather has brought from other nodes, if that is asked for (secondary
/// shards), and each rank the blocks of its own shard.
class Gathers {
 public:
  Gathers(Plan& plan, const PlanInputs& in, const Residences& residences)
      : plan_(plan),
        in_(in),
        residences_(residences),
        routes_(in, plan.place),
        kept_(residences.size()) {}

  /// Parameters that are kept in another type than they are used in are converted as the last
  /// thing.
  Calls calls(const UnitState& state, const Residence& r) {
    const DType type = in_.type_of(in_.model.units[r.unit]);
    const View window = buffer_view(r.window, type, state.layout.padded);
    const comm::AllGather gather{.shard = state.own_shard, .full = window};
    if (state.parameters && state.parameters.type == type) {  // they live elsewhere
      if (!publishes(state) || !r.first_of_unit || has_all_from_before(plan_))
        return {{Leg::unpack, Copy{state.parameters, window}}};
      Calls calls = travel(state, gather, r);
      calls.push_back({Leg::unpack, Copy{window, state.parameters}});
      return calls;
    }
    if (const DType stored = state.own_shard.type; stored != type)
      return converted(state, gather, r, stored);
    const bool in_blocks_of =
        in_.numerics.weight_blocks && in_.model.units[r.unit].traits.block > 0;
    if (!in_blocks_of || plan_.shape.purpose <= PlanPurpose::evaluate)
      return travel(state, gather, r);
    return in_blocks(state, gather, r, *in_.numerics.weight_blocks);
  }

 private:
  struct Kept {
    BufferId own = -1, of_node = -1;
  };

  Calls converted(const UnitState& state, comm::AllGather gather, const Residence& r,
                  DType stored) {
    const std::int64_t n = state.slot, shards = state.layout.padded / n,
                       shard = state.codes ? state.codes->bytes(n) : n;
    const auto convert = [&](const View& whole) {
      if (!state.codes)
        return LegCall{Leg::unpack,
                       kernels::KernelCall{kernels::Convert{.x = whole, .out = gather.full}}};
      return LegCall{Leg::unpack, kernels::KernelCall{kernels::SumQuantized{
                                      .code = whole.reshaped({1, shards, shard}),
                                      .out = gather.full.reshaped({shards, n}),
                                      .format = *state.codes}}};
    };
    if (state.parameters) return {convert(state.parameters)};
    const View whole(arriving_.next(plan_, shards * shard * size_of(stored)).data, stored,
                     {shards * shard});
    const auto last = convert(whole);
    gather.full = whole;
    Calls calls = travel(state, gather, r);
    calls.push_back(last);
    return calls;
  }

  Calls in_blocks(const UnitState& state, const comm::AllGather& gather, const Residence& r,
                  const kernels::BlockFormat& format) {
    const std::int64_t n = state.layout.shard, ranks = state.layout.padded / n;
    Calls calls;
    std::int64_t at = 0;  // byte of what is kept of a shard
    for (const Range& chunk : chunks_of(n, gather.full.type, format, in_.numerics.chunk_bytes)) {
      const std::int64_t bytes = format.bytes(chunk.count());
      View own;  // codes, which later gathers read again unless they read those of the node
      if (again(r) && !keeps_of_node(r))
        own = keep(kept_[r.unit].own, r, "blocks of the own shard", BufferPurpose::staging,
                   {at, at + bytes});
      const GatherInBlocks blocks =
          gather_in_blocks(gather, state.index(), format, chunk,
                           arriving_.next(plan_, block_staging(format, ranks, chunk.count())), own);
      if (r.first_of_unit) calls.push_back({Leg::pack, blocks.quantize});
      for (LegCall& call : travel(state, blocks.codes, r, at)) calls.push_back(std::move(call));
      calls.push_back({Leg::unpack, blocks.dequantize});
      at += bytes;
    }
    return calls;
  }

  bool generates() const { return plan_.shape.purpose == PlanPurpose::generate; }

  /// A gather over the route. What was kept, in this pass or from those before, need not cross
  /// between nodes again; it begins with byte `at` of each shard.
  Calls travel(const UnitState& state, const comm::AllGather& gather, const Residence& r,
               std::int64_t at = 0) {
    const comm::Route& route = routes_.of(r.unit).gathers;
    const std::int64_t shards = shards_between(route), bytes = shards * gather.shard.span_bytes();
    View middle;
    const bool from_before = generates() && state.of_node;
    if (bytes > 0) {
      View room = state.of_node;
      if (!from_before)
        room = keeps_of_node(r) ? keep(kept_[r.unit].of_node, r, "secondary shard",
                                       BufferPurpose::secondary, {shards * at, shards * at + bytes})
                                : between_.next(plan_, bytes);
      middle = View(room.data, gather.shard.type, {bytes / size_of(gather.shard.type)});
    }
    Calls calls;
    const bool there = from_before ? has_all_from_before(plan_) || !r.first_of_unit
                                   : keeps_of_node(r) && !r.first_of_unit;
    if (!there) calls = gather_across(route, gather, middle);
    for (LegCall& call : gather_within(route, gather, middle)) calls.push_back(std::move(call));
    return calls;
  }

  /// Whether the unit is gathered several times within the step.
  bool again(const Residence& r) const { return residences_[r.unit].size() > 1; }
  bool keeps_of_node(const Residence& r) {
    return in_.sharding.secondary && routes_.of(r.unit).gathers.hops.size() > 1 && again(r) &&
           in_.model.units[r.unit].traits.shared_by == MeshGroup::data;
  }
  View keep(BufferId& id, const Residence& r, const char* what, BufferPurpose purpose,
            const Range& bytes) {
    if (id < 0)
      id = add_buffer(plan_, fmt::format("{} {}", in_.model.units[r.unit].name, what), purpose, 0);
    enlarge_buffer(plan_, id, bytes.end);
    return View(symbolic(id, bytes.begin), DType::u8, {bytes.count()});
  }

  Plan& plan_;
  const PlanInputs& in_;
  const Residences& residences_;
  RoutesOfUnits routes_;
  std::vector<Kept> kept_;  // by unit
  TurnStaging arriving_{"parameters on their way"}, between_{"parameters between nodes"};
};

/// One gather a residence, `prefetch` visits ahead; in order of first use, so that the gather
/// stream is too.
void add_gathers(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states,
                 const Residences& residences) {
  std::vector<Residence> in_order;
  for (const auto& of_unit : residences)
    in_order.insert(in_order.end(), of_unit.begin(), of_unit.end());
  std::ranges::stable_sort(in_order, {}, &Residence::first_visit);
  const auto starts = visit_starts(plan);
  Gathers gathers(plan, in, residences);
  Insertions insertions;
  for (const Residence& r : in_order) {
    const auto visit = static_cast<std::int32_t>(
        std::max<std::int64_t>(0, r.first_visit - prefetch_of(in, states[r.unit])));
    const std::size_t at = starts.lower_bound(visit)->second;
    for (LegCall& call : gathers.calls(states[r.unit], r)) {
      const auto* copy = std::get_if<Copy>(&call.call);
      insertions.before(
          at,
          copy == nullptr
              ? gather_op(OpKind::gather, r.unit, in, std::move(call))
              : copy_op(plan, {.unit = static_cast<std::int32_t>(r.unit), .visit = visit}, *copy));
    }
  }
  insertions.apply(plan.ops);
}

}  // namespace

void residency(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states,
               const Scheduled& scheduled) {
  const UnitOfWindow unit_of = units_of_windows(scheduled);
  if (!unit_of.empty()) {
    Residences residences = residences_of(plan, in, states, unit_of);
    add_windows(plan, scheduled, residences);
    read_windows(plan, unit_of, residences);
    add_gathers(plan, in, states, residences);
  }
  publish(plan, in, states);
}

}  // namespace tessera::plan
