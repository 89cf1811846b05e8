#include "plan/passes/optimizer_step.hpp"

#include "core/exact_sum.hpp"
#include "plan/passes/buffers.hpp"

namespace tessera::plan {

namespace {

Op op_of(OpKind kind, Stream stream, std::size_t unit, Call call) {
  return {.kind = kind,
          .stream = stream,
          .unit = static_cast<std::int32_t>(unit),
          .call = std::move(call),
          .waits = {}};
}
constexpr auto kAllUnits = static_cast<std::size_t>(-1);

/// Every element of the gradient enters the norm once: each rank adds the elements that it counts,
/// exactly, and the words are summed over all ranks.
void add_norm(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states,
              const std::vector<SummedGradient>& gradients) {
  const View squares = plan.words.range(WordLayout::norm, kExactSumWords);
  for (std::size_t u = 0; u < states.size(); ++u) {
    if (!states[u].trained) continue;
    const std::int64_t first = states[u].slice.begin;
    for (const Range& part : counted_ranges(in, plan, u, states[u].layout)) {
      plan.ops.push_back(op_of(OpKind::norm, Stream::compute, u,
                               kernels::KernelCall{kernels::ExactSum{
                                   .x = gradients[u].slice.range(part.begin - first, part.count()),
                                   .accumulator = squares}}));
    }
  }
  plan.ops.push_back(op_of(OpKind::norm, Stream::reduce, kAllUnits,
                           comm::CollectiveCall{comm::AllReduceWords{.words = plan.words}}));
  plan.ops.back().group = MeshGroup::world;
  plan.ops.push_back(
      op_of(OpKind::norm, Stream::compute, kAllUnits,
            kernels::KernelCall{kernels::Verdict{.squares = squares,
                                                 .scalars = plan.scalars,
                                                 .verdict = plan.verdict,
                                                 .clip_norm = in.optimizer.clip_norm}}));
}

/// The optimizer's step on the owned elements in `part` of one unit.
Call update_call(const Plan& plan, const PlanInputs& in, const UnitState& s,
                 const SummedGradient& gradient, Range part, optim::UpdatePart of) {
  const auto slice = [&](const View& v) {
    return v ? v.range(part.begin - s.owned.begin, part.count()) : View{};
  };
  const auto rows = kept_tensors(in);
  std::vector<View> state;
  for (std::size_t r = kMasterRow + 1; r < rows.size(); ++r) {
    const View& live = s.kept[r].live;
    state.push_back(rows[r].extent == optim::Extent::owned ? slice(live) : live);
  }
  return in.optimizer.update({.gradient = slice(gradient.owned),
                              .master = slice(s.master()),
                              .parameter = slice(s.copy),
                              .scalars = plan.scalars,
                              .verdict = plan.verdict,
                              .state = state},
                             of);
}

/// Of each trained unit, matrices, then vectors.
void add_updates(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states,
                 const std::vector<SummedGradient>& gradients) {
  for (std::size_t u = 0; u < states.size(); ++u) {
    const UnitState& s = states[u];
    if (!s.trained) continue;
    const auto add = [&](Range part, optim::UpdatePart of) {
      if (part.empty()) return;
      plan.ops.push_back(op_of(OpKind::update, Stream::compute, u,
                               update_call(plan, in, s, gradients[u], part, of)));
    };
    add(intersect(s.owned, {0, s.layout.matrices_end}), optim::UpdatePart::matrices);
    add(intersect(s.owned, {s.layout.matrices_end, s.layout.padded}), optim::UpdatePart::vectors);
  }
}

/// A checkpoint of the step before is copied while this step computes. Nothing need say that
/// updates wait for the copies: they write what the copies read, so place_waits finds it.
void add_snapshots(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states) {
  const auto rows = kept_tensors(in);
  Insertions insertions;
  for (std::size_t u = 0; u < states.size(); ++u) {
    const UnitState& s = states[u];
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (s.kept.empty() || !s.kept[r].snapshot) continue;
      const auto& [live, snapshot] = s.kept[r];
      const bool owned = rows[r].extent == optim::Extent::owned;
      const View from = live.range(owned ? s.slice.begin - s.owned.begin : 0, s.slice.count());
      insertions.before(0, op_of(OpKind::snapshot, Stream::copy, u, Copy{from, snapshot}));
    }
  }
  insertions.apply(plan.ops);
}

}  // namespace

void optimizer_step(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states,
                    const std::vector<SummedGradient>& gradients) {
  add_norm(plan, in, states, gradients);
  add_updates(plan, in, states, gradients);
  if (plan.shape.purpose == PlanPurpose::train_snapshot) add_snapshots(plan, in, states);
}

}  // namespace tessera::plan
