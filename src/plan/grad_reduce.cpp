#include <algorithm>
#include <map>

#include "plan/make_plan.hpp"

namespace tessera::plan {
namespace {

/// What no operation overwrites of [0, bytes): padding, gaps, rows that the sequence does not
/// reach.
std::vector<Range> complement(std::vector<Range> written, std::int64_t bytes) {
  std::sort(written.begin(), written.end(), [](Range a, Range b) { return a.begin < b.begin; });
  std::vector<Range> gaps;
  std::int64_t end = 0;
  for (const Range& r : written) {
    if (r.begin > end) gaps.push_back({end, r.begin});
    end = std::max(end, r.end);
  }
  if (end < bytes) gaps.push_back({end, bytes});
  return gaps;
}

struct Instance {  // one gradient buffer: of the whole step, or of one micro-batch
  std::size_t unit = 0;
  bool again = false;  // the unit was reduced before in this step
  bool last = false;   // no later instance of the unit
  std::size_t first_op = 0, last_op = 0;
  std::vector<Range> written;
};

}  // namespace

std::vector<SummedGradient> grad_reduce(Plan& plan, const PlanInputs& in,
                                        const std::vector<UnitState>& states,
                                        const Scheduled& scheduled) {
  const std::size_t units = states.size();
  std::map<BufferId, Instance> instances;
  for (std::size_t i = 0; i < scheduled.gradients.size(); ++i) {
    instances.try_emplace(scheduled.gradients[i],
                          Instance{.unit = i % units, .again = i >= units, .written = {}});
  }
  for (std::size_t u = 0; u < units; ++u) {
    instances.at(scheduled.gradients[scheduled.gradients.size() - units + u]).last = true;
  }
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    for (const BufferUse& use : uses_of(plan.ops[i])) {
      const auto it = instances.find(use.buffer);
      if (it == instances.end()) continue;
      Instance& instance = it->second;
      if (instance.written.empty()) instance.first_op = i;
      instance.last_op = i;
      if (use.access == kernels::Access::write) instance.written.push_back(use.bytes);
    }
  }

  const bool alone = in.data_group.size == 1;
  View staging;  // reductions follow one another on their stream, so one serves all
  if (!alone) {
    const std::int64_t bytes = comm::reduce_scatter_staging(in.data_group, in.wire);
    staging = buffer_view(add_buffer(plan, "staging", Purpose::staging, bytes), DType::u8, bytes);
  }
  Insertions insertions;
  std::vector<SummedGradient> sums(units);
  std::vector<std::pair<std::size_t, BufferId>> by_completion;
  for (const auto& [id, instance] : instances) by_completion.push_back({instance.last_op, id});
  std::sort(by_completion.begin(), by_completion.end());
  for (const auto& [last_op, id] : by_completion) {
    const Instance& instance = instances.at(id);
    const UnitState& state = states[instance.unit];
    const auto unit = static_cast<std::int32_t>(instance.unit);
    const View full = buffer_view(id, in.accumulate, state.layout.padded);
    for (const Range& gap : complement(instance.written, full.span_bytes())) {
      insertions.before(instance.first_op,
                        {.kind = OpKind::kernel,
                         .unit = unit,
                         .visit = plan.ops[instance.first_op].visit,
                         .call = kernels::KernelCall{kernels::Fill{
                             .out = View(symbolic(id, gap.begin), DType::u8, {gap.count()})}},
                         .waits = {}});
    }
    SummedGradient& sum = sums[instance.unit];
    if (alone) {
      sum = {.slice = full, .owned = full};
      continue;
    }
    if (!sum.slice) {
      // At stage 0 a gradient that is reduced once stays where it is; otherwise the slice outlives
      // the full buffer.
      const Range slice = state.layout.shard_of(plan.data_rank);
      const bool in_place = in.stage == 0 && instance.last;
      sum.slice =
          in_place ? full.range(slice.begin, slice.count())
                   : buffer_view(add_buffer(plan, in.units[instance.unit].name + " gradient shard",
                                            Purpose::gradients, state.layout.shard * 4),
                                 DType::f32, state.layout.shard);
    }
    const comm::ReduceScatter reduce{
        .full = full,
        .shard = sum.slice,
        .staging = staging,
        .wire = in.wire,
        .write = instance.again ? kernels::Write::add : kernels::Write::overwrite};
    insertions.before(last_op + 1, {.kind = OpKind::reduce_gradients,
                                    .stream = Stream::reduce,
                                    .unit = unit,
                                    .micro_batch = plan.ops[last_op].micro_batch,
                                    .visit = plan.ops[last_op].visit,
                                    .call = comm::CollectiveCall{reduce},
                                    .waits = {}});
    if (!instance.last) continue;
    sum.owned = sum.slice;
    if (in.stage == 0) {
      sum.owned = full;
      insertions.before(
          last_op + 1,
          {.kind = OpKind::gather_gradients,
           .stream = Stream::reduce,
           .unit = unit,
           .micro_batch = plan.ops[last_op].micro_batch,
           .visit = plan.ops[last_op].visit,
           .call = comm::CollectiveCall{comm::AllGather{.shard = sum.slice, .full = full}},
           .waits = {}});
    }
  }
  insertions.apply(plan.ops);
  return sums;
}

}  // namespace tessera::plan
