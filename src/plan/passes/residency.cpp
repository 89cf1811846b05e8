#include "plan/passes/residency.hpp"

#include <algorithm>
#include <map>

#include "plan/passes/blocks.hpp"
#include "plan/passes/buffers.hpp"

namespace tessera::plan {
namespace {

Op gather_op(OpKind kind, std::size_t unit, Call call) {
  return {.kind = kind,
          .stream = Stream::gather,
          .unit = static_cast<std::int32_t>(unit),
          .call = std::move(call),
          .waits = {}};
}

/// A run of uses of a unit that one gather, and one window, serves.
struct Residence {
  std::int32_t first_visit = 0, last_visit = 0;
  BufferId buffer = -1;  // its window
};

}  // namespace

void residency(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states,
               const Scheduled& scheduled) {
  if (!in.sharding().states) return;
  Insertions insertions;
  if (in.sharding().publishes()) {
    // Shards and full buffers are there when the step starts, so the gather stream publishes one
    // unit after another while the first visits compute.
    std::vector<std::size_t> order;
    for (const Op& op : plan.ops) {
      for (const BufferUse& use : uses_of(op)) {
        for (std::size_t u = 0; u < states.size(); ++u) {
          if (states[u].held && use.buffer == buffer_of(states[u].parameters) &&
              std::find(order.begin(), order.end(), u) == order.end()) {
            order.push_back(u);
          }
        }
      }
    }
    for (std::size_t u : order) {
      insertions.before(
          0, gather_op(OpKind::publish, u,
                       comm::CollectiveCall{comm::AllGather{.shard = states[u].own_shard,
                                                            .full = states[u].parameters}}));
    }
    insertions.apply(plan.ops);
    return;
  }

  std::map<BufferId, std::size_t> unit_of;
  for (std::size_t u = 0; u < states.size(); ++u) {
    if (states[u].held) unit_of[scheduled.windows[u]] = u;
  }
  std::map<std::int32_t, std::size_t> visit_start;
  std::vector<std::vector<Residence>> residences(states.size());
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    visit_start.try_emplace(op.visit, i);
    for (const BufferUse& use : uses_of(op)) {
      const auto it = unit_of.find(use.buffer);
      if (it == unit_of.end()) continue;
      auto& list = residences[it->second];
      // Uses at most prefetch + 1 visits apart share a window. Keeping it costs no more memory than
      // a second one, whose gather would begin as soon as the first use ends, or before.
      if (!list.empty() && op.visit - list.back().last_visit <= in.prefetch + 1) {
        list.back().last_visit = op.visit;
      } else {
        list.push_back({.first_visit = op.visit, .last_visit = op.visit});
      }
    }
  }
  // One buffer and one gather for each residence, in order of first use: that is the order in which
  // the gather stream runs them.
  struct Pending {
    std::int32_t first_visit;
    std::size_t unit;
    BufferId buffer;
  };
  std::vector<Pending> gathers;
  for (std::size_t u = 0; u < states.size(); ++u) {
    for (Residence& r : residences[u]) {
      const Buffer& placeholder = plan.buffers[static_cast<std::size_t>(scheduled.windows[u])];
      r.buffer = add_buffer(plan, placeholder.name, Purpose::gather_window, placeholder.bytes);
      gathers.push_back({r.first_visit, u, r.buffer});
    }
  }
  std::stable_sort(gathers.begin(), gathers.end(), [](const Pending& a, const Pending& b) {
    return a.first_visit < b.first_visit;
  });
  std::vector<std::size_t> current(states.size());  // residence of each unit: visits only grow
  for (Op& op : plan.ops) {
    each_view(op.call, [&](View& view, kernels::Access) {
      const auto it = unit_of.find(buffer_of(view));
      if (it == unit_of.end()) return;
      std::size_t& at = current[it->second];
      while (residences[it->second][at].last_visit < op.visit) ++at;
      view.data = symbolic(residences[it->second][at].buffer, offset_of(view));
    });
  }
  Staging staging("parameters on their way");
  for (const Pending& g : gathers) {
    const auto visit =
        static_cast<std::int32_t>(std::max<std::int64_t>(0, g.first_visit - in.prefetch));
    const UnitState& state = states[g.unit];
    const std::size_t at = visit_start.lower_bound(visit)->second;  // some visits are empty
    const comm::AllGather call{.shard = state.own_shard,
                               .full = buffer_view(g.buffer, in.compute, state.layout.padded)};
    Calls calls = {comm::CollectiveCall{call}};
    if (in.weight_blocks && plan.shape.purpose != PlanPurpose::evaluate) {
      const std::int64_t bytes = block_staging(*in.weight_blocks, in.mesh.data, state.layout.shard);
      calls = gather_in_blocks(call, plan.place.data, *in.weight_blocks, staging.view(plan, bytes));
    }
    for (Call& c : calls) insertions.before(at, gather_op(OpKind::gather, g.unit, std::move(c)));
  }
  insertions.apply(plan.ops);
}

}  // namespace tessera::plan
