#include "plan/passes/optimizer_step.hpp"

#include "core/exact_sum.hpp"
#include "plan/passes/buffers.hpp"

namespace tessera::plan {

void optimizer_step(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states,
                    const std::vector<SummedGradient>& gradients) {
  const auto add = [&](OpKind kind, Stream stream, std::size_t unit, Call call) {
    plan.ops.push_back({.kind = kind,
                        .stream = stream,
                        .unit = static_cast<std::int32_t>(unit),
                        .call = std::move(call),
                        .waits = {}});
  };
  // Every element of the gradient enters the norm once: each rank adds the elements that it counts,
  // exactly, and the words are summed over all ranks.
  for (std::size_t u = 0; u < states.size(); ++u) {
    if (!states[u].held) continue;
    const std::int64_t first = states[u].layout.shard_of(plan.place.data).begin;
    for (const Range& part : counted_ranges(in, plan, u, states[u].layout)) {
      add(OpKind::norm, Stream::compute, u,
          kernels::KernelCall{kernels::ExactSum{
              .x = gradients[u].slice.range(part.begin - first, part.count()),
              .accumulator = plan.words.range(WordLayout::norm, kExactSumWords)}});
    }
  }
  const auto all = static_cast<std::size_t>(-1);
  add(OpKind::norm, Stream::reduce, all,
      comm::CollectiveCall{comm::AllReduceWords{.words = plan.words}});
  plan.ops.back().group = MeshGroup::world;
  add(OpKind::norm, Stream::compute, all,
      kernels::KernelCall{
          kernels::Verdict{.squares = plan.words.range(WordLayout::norm, kExactSumWords),
                           .scalars = plan.scalars,
                           .verdict = plan.verdict,
                           .clip_norm = in.optimizer.clip_norm}});
  const auto rows = kept_tensors(in);
  for (std::size_t u = 0; u < states.size(); ++u) {
    const UnitState& s = states[u];
    if (!s.held) continue;
    const auto update = [&](Range part, float decay) {
      if (part.empty()) return;
      const auto slice = [&](const View& v) {
        return v ? v.range(part.begin - s.owned.begin, part.count()) : View{};
      };
      std::vector<View> state;
      for (std::size_t r = kMasterRow + 1; r < rows.size(); ++r) {
        const View& live = s.kept[r].live;
        state.push_back(rows[r].extent == optim::Extent::owned ? slice(live) : live);
      }
      add(OpKind::update, Stream::compute, u,
          in.optimizer.update({.gradient = slice(gradients[u].owned),
                               .master = slice(s.master()),
                               .parameter = slice(s.copy),
                               .scalars = plan.scalars,
                               .verdict = plan.verdict,
                               .state = state},
                              decay));
    };
    update(intersect(s.owned, {0, s.layout.decay_end}), in.optimizer.weight_decay);
    update(intersect(s.owned, {s.layout.decay_end, s.layout.padded}), 0.0F);
  }
  if (plan.shape.purpose != PlanPurpose::train_snapshot) return;
  // A checkpoint of the step before is copied while this step computes. Nothing need say that
  // updates wait for the copies: they write what the copies read, so place_waits finds it.
  Insertions insertions;
  for (std::size_t u = 0; u < states.size(); ++u) {
    const UnitState& s = states[u];
    if (!s.held) continue;
    const Range slice = s.layout.shard_of(plan.place.data);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const auto& [live, snapshot] = s.kept[r];
      if (!rows[r].saved) continue;
      const bool owned = rows[r].extent == optim::Extent::owned;
      const View from = live.range(owned ? slice.begin - s.owned.begin : 0, slice.count());
      insertions.before(0, {.kind = OpKind::snapshot,
                            .stream = Stream::copy,
                            .unit = static_cast<std::int32_t>(u),
                            .call = Copy{from, snapshot},
                            .waits = {}});
    }
  }
  insertions.apply(plan.ops);
}

}  // namespace tessera::plan
