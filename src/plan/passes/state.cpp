#include "plan/passes/state.hpp"

#include <algorithm>

#include "core/exact_sum.hpp"
#include "plan/passes/buffers.hpp"
#include "plan/passes/layers.hpp"

namespace tessera::plan {

void set_place(Plan& plan, const PlanInputs& in, const MeshPlace& place) {
  plan.place = place;
  for (std::size_t g = 0; g < kMeshGroups; ++g)
    plan.groups[g] = group_shape(in, place, static_cast<MeshGroup>(g));
}

/// Elements of a state tensor that a rank keeps of a unit.
static std::int64_t count_of(optim::Extent extent, const UnitState& s,
                             const model::UnitDesc& unit) {
  switch (extent) {
    case optim::Extent::owned: return s.owned.count();
    case optim::Extent::shard: return s.layout.shard;
    case optim::Extent::tensor: return std::ssize(unit.params);
    case optim::Extent::rank: return s.layout.padded;
  }
  throw InternalError("an extent without a size");
}

std::vector<Range> counted_ranges(const PlanInputs& in, const Plan& plan, std::size_t unit,
                                  const zero::UnitLayout& layout) {
  // The last stage's copy of a tied matrix is the first stage's.
  if (on_both_ends(in, unit) && plan.place.pipeline > 0) return {};
  return zero::counted(layout, layout.shard_of(plan.place.data), tensor_cut(in, plan.place));
}

std::vector<UnitState> add_state(Plan& plan, const PlanInputs& in) {
  const auto persistent = [&](std::string name, Purpose purpose, DType type, std::int64_t elements,
                              Place place = Place::device) {
    return buffer_view(add_buffer(plan, {.name = std::move(name),
                                         .purpose = purpose,
                                         .bytes = elements * size_of(type),
                                         .persistent = true,
                                         .place = place}),
                       type, elements);
  };
  static_assert(WordLayout::norm == kExactSumWords && WordLayout::flags == 2 * kExactSumWords);
  plan.words = persistent("words", Purpose::control, DType::i64, WordLayout::count);
  plan.scalars = persistent("scalars", Purpose::control, DType::f32,
                            static_cast<std::int64_t>(kernels::StepScalar::count));
  plan.verdict = persistent("verdict", Purpose::control, DType::f32,
                            static_cast<std::int64_t>(kernels::VerdictField::count));

  const std::int64_t data = in.mesh.data;
  const Sharding sharding = in.sharding();
  const auto rows = kept_tensors(in);
  const model::TensorCut cut = tensor_cut(in, plan.place);
  const auto held = held_units(in, plan.place.pipeline);
  std::vector<UnitState> states(in.units.size());
  plan.shares.resize(in.units.size());
  for (std::size_t u = 0; u < states.size(); ++u) {
    if (!held[u]) continue;
    const auto& unit = in.units[u];
    UnitState& s = states[u];
    s.held = true;
    s.layout = zero::unit_layout(unit, data, cut);
    const Range slice = s.layout.shard_of(plan.place.data);
    plan.shares[u].shard = s.layout.shard;
    for (const Range& part : counted_ranges(in, plan, u, s.layout))
      plan.shares[u].counted += part.count();
    s.owned = sharding.states ? slice : Range{0, s.layout.padded};
    const auto name = [&](std::string_view what) { return fmt::format("{} {}", unit.name, what); };
    const auto parameters = [&](std::int64_t elements) {
      return persistent(name("parameters"), Purpose::parameters, in.compute, elements);
    };
    if (sharding.parameters) {
      s.own_shard = parameters(s.layout.shard);
    } else {
      s.parameters = parameters(s.layout.padded);
      s.own_shard = s.parameters.range(slice.begin, slice.count());
    }
    s.kept.resize(rows.size());
    (in.compute == DType::f32 ? s.kept[kMasterRow].live : s.copy) =
        s.owned == slice ? s.own_shard : s.parameters;
    for (std::size_t r = 0; r < rows.size() && in.state_for >= PlanPurpose::train; ++r) {
      const Purpose purpose = r == kMasterRow ? Purpose::master : Purpose::optimizer;
      if (View& live = s.kept[r].live; !live) {
        live = persistent(name(rows[r].name), purpose, rows[r].type,
                          count_of(rows[r].extent, s, unit));
      }
    }
    for (std::size_t r = 0; r < rows.size() && in.state_for >= PlanPurpose::train_snapshot; ++r) {
      if (!rows[r].saved) continue;
      s.kept[r].snapshot = persistent(name("snapshot of " + rows[r].name), Purpose::snapshot,
                                      rows[r].type, s.layout.shard, Place::host);
    }
  }
  return states;
}

}  // namespace tessera::plan
