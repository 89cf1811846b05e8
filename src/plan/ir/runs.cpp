#include "plan/ir/runs.hpp"

#include <algorithm>
#include <map>

#include "plan/ir/lives.hpp"

namespace tessera::plan {

std::int64_t runs_of(const Plan& plan) {
  const std::int64_t again = plan.repeat ? (plan.repeat->times - 1) * plan.repeat->ops : 0;
  return std::ssize(plan.ops) + again;
}

std::int64_t times_of(const Plan& plan, OpId op) {
  const auto& repeat = plan.repeat;
  return repeat && op >= repeat->second() && op < repeat->end() ? repeat->times : 1;
}

namespace {

/// A call whose views have, in the place of buffers, where these are.
Call by_address(const Plan& plan, const Op& op) {
  Call call = op.call;
  each_view(call, [&](View& view, kernels::Access) {
    const Buffer& buffer = plan.buffer(buffer_of(view));
    view.data = symbolic(static_cast<BufferId>(arena_of(buffer)), buffer.offset + offset_of(view));
  });
  return call;
}

}  // namespace

bool repeats(const Plan& plan, const Repeat& repeat, OpId op) {
  const Op &a = plan.op(op), &b = plan.op(op + repeat.ops);
  const auto later = [](std::int32_t before, std::int32_t behind, std::int32_t by) {
    return before < 0 ? behind < 0 : behind == before + by;  // below 0: of none
  };
  if (a.kind != b.kind || a.stream != b.stream || a.location != b.location || a.group != b.group ||
      a.unit != b.unit || a.again != b.again || a.call.index() != b.call.index() ||
      !later(a.micro_batch, b.micro_batch, repeat.micro_batches) ||
      !later(a.visit, b.visit, repeat.visits))
    return false;
  const auto waits_alike = [&](OpId before, OpId behind) {
    return behind == before + repeat.ops && behind >= repeat.first;
  };
  return std::ranges::equal(a.waits, b.waits, waits_alike) &&
         by_address(plan, a) == by_address(plan, b);
}

OpRun run_at(const Plan& plan, std::int64_t number) {
  const auto& repeat = plan.repeat;
  if (!repeat || number < repeat->second()) return {static_cast<OpId>(number), 0};
  const std::int64_t before =
      std::min((number - repeat->second()) / repeat->ops, repeat->times - 1);
  return {static_cast<OpId>(number - before * repeat->ops), before};
}

std::int64_t number_of(const Plan& plan, const OpRun& run) {
  return run.op + (run.before > 0 ? run.before * plan.repeat->ops : 0);
}

std::int64_t awaited(const Plan& plan, const OpRun& run, OpId op) {
  return counts_with_runs(plan, op) ? number_of(plan, {op, run.before}) : op;
}

std::int32_t micro_batch_of(const Plan& plan, const OpRun& run) {
  const std::int32_t there = plan.op(run.op).micro_batch;
  if (there < 0 || run.before == 0) return there;
  return there + static_cast<std::int32_t>(run.before * plan.repeat->micro_batches);
}

namespace {

/// Buffers of an unrolled plan.
class Copies {
 public:
  explicit Copies(Plan& plan) : plan_(plan) {
    const Repeat& repeat = *plan.repeat;
    const std::vector<OpId> born = births(plan);
    const auto is_born_in = [&](BufferId id, OpId begin) {
      return !plan.buffer(id).persistent && at(born, id) >= begin &&
             at(born, id) < begin + repeat.ops;
    };
    for (std::int64_t i = 0; i < repeat.ops; ++i) {
      const auto first = uses_of(plan.op(repeat.first + static_cast<OpId>(i))),
                 second = uses_of(plan.op(repeat.second() + static_cast<OpId>(i)));
      for (std::size_t k = 0; k < first.size(); ++k) {
        if (is_born_in(second[k].buffer, repeat.second()))
          in_turn_[second[k].buffer] = {second[k].buffer};
        if (is_born_in(first[k].buffer, repeat.first)) next_[first[k].buffer] = second[k].buffer;
      }
    }
  }

  /// What serves as this buffer when the part has run so often before.
  BufferId of(BufferId id, std::int64_t before) {
    if (before == 0) return id;
    if (const auto next = next_.find(id); next != next_.end()) return of(next->second, before - 1);
    const auto turns = in_turn_.find(id);
    if (turns == in_turn_.end()) return id;
    while (std::ssize(turns->second) <= before) {
      turns->second.push_back(static_cast<BufferId>(plan_.buffers.size()));
      const Buffer copy = plan_.buffer(id);  // of what push_back may move
      plan_.buffers.push_back(copy);
    }
    return at(turns->second, before);
  }

 private:
  Plan& plan_;
  std::map<BufferId, std::vector<BufferId>>
      in_turn_;                        // of the second copy, by how often it has run
  std::map<BufferId, BufferId> next_;  // of the first copy: that of the second
};

}  // namespace

Plan unrolled(Plan plan) {
  if (!plan.repeat) return plan;
  Plan all = plan;
  Copies copies(all);
  std::vector<Op> ops;
  const std::int64_t runs = runs_of(plan);
  ops.reserve(static_cast<std::size_t>(runs));
  for (std::int64_t i = 0; i < runs; ++i) {
    const OpRun run = run_at(plan, i);
    Op op = plan.op(run.op);
    op.micro_batch = micro_batch_of(plan, run);
    if (op.visit >= 0) op.visit += static_cast<std::int32_t>(run.before * plan.repeat->visits);
    for (OpId& wait : op.waits) wait = static_cast<OpId>(awaited(plan, run, wait));
    each_view(op.call, [&](View& view, kernels::Access) {
      view.data = symbolic(copies.of(buffer_of(view), run.before), offset_of(view));
    });
    ops.push_back(std::move(op));
  }
  all.ops = std::move(ops);
  all.repeat.reset();
  all.scheduled = plan.shape.micro_batches;
  return all;
}

}  // namespace tessera::plan
