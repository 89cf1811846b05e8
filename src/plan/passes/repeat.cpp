#include "plan/passes/repeat.hpp"

#include <algorithm>

#include "plan/ir/lives.hpp"
#include "plan/ir/runs.hpp"
#include "plan/passes/pipeline.hpp"
#include "plan/passes/weave.hpp"

namespace tessera::plan {
namespace {

/// The ops that take micro-batches, in their order: one for each.
std::vector<OpId> takes_of(const Plan& plan) {
  std::vector<OpId> takes;
  for (std::size_t i = 0; i < plan.ops.size(); ++i)
    if (kernel_of<kernels::TakeRow>(plan.ops[i]) != nullptr) takes.push_back(static_cast<OpId>(i));
  return takes;
}

/// Whether two ops do alike to buffers, whichever these are.
bool alike(const Plan& plan, OpId one, OpId other) {
  const Op &a = plan.op(one), &b = plan.op(other);
  if (a.kind != b.kind || a.stream != b.stream || a.unit != b.unit ||
      call_name(a.call) != call_name(b.call))
    return false;
  const auto same = [](const BufferUse& x, const BufferUse& y) {
    return x.bytes == y.bytes && x.access == y.access;
  };
  return std::ranges::equal(uses_of(a), uses_of(b), same);
}

bool is_twice(const Plan& plan, const Repeat& repeat) {
  for (OpId i = repeat.first; i < repeat.second(); ++i)
    if (!repeats(plan, repeat, i)) return false;
  return true;
}

}  // namespace

static std::int64_t under_way(const PlanInputs& in) {
  return schedule_round(in) * in.layout.pipeline.virtual_stages;
}

std::int64_t least_repeated(const PlanInputs& in) {
  constexpr std::int64_t kLeast = 8;
  return std::max(kLeast, 2 * under_way(in));
}

std::optional<std::int64_t> scheduled_at_first(const PlanInputs& in, const PlanShape& shape) {
  const bool forwards_first = in.layout.pipeline.schedule == PipelineSchedule::gpipe &&
                              shape.purpose > PlanPurpose::evaluate;
  if (in.numerics.layout_mode || shape.purpose == PlanPurpose::generate ||
      shape.purpose == PlanPurpose::flush || shape.scores != Scores::none || forwards_first)
    return std::nullopt;
  // Two of the part that repeats, as much before them until all waits for what that does, and what
  // comes before and behind: twice as many as are under way in a pipeline.
  const std::int64_t few = 3 * least_repeated(in) + 4 * under_way(in);
  return shape.micro_batches > 2 * few ? std::optional(few) : std::nullopt;
}

std::optional<Repeat> find_repeat(const Plan& plan, std::int64_t least, std::int64_t most) {
  const std::vector<OpId> takes = takes_of(plan);
  for (std::int64_t m = least; m <= most; ++m) {
    for (std::int64_t k = std::ssize(takes) - 2 * m - 1; k >= 0; --k) {
      const OpId first = at(takes, k), second = at(takes, k + m);
      const Repeat repeat{.first = first,
                          .ops = second - first,
                          .micro_batches = static_cast<std::int32_t>(m),
                          .visits = plan.op(second).visit - plan.op(first).visit};
      if (at(takes, k + 2 * m) == repeat.end() && is_twice(plan, repeat)) return repeat;
    }
  }
  return std::nullopt;
}

namespace {

/// The ops that have alike ones so many micro-batches later, around those in the middle; and how
/// many ops later those are.
struct Steady {
  Range ops;
  OpId apart = 0;
};
Steady steady_part(const Plan& plan, const std::vector<OpId>& takes, std::int64_t micro_batches) {
  const std::int64_t middle = std::ssize(takes) / 2;
  Steady steady;
  if (middle + micro_batches >= std::ssize(takes)) return steady;
  const OpId begin = at(takes, middle);
  steady.apart = at(takes, middle + micro_batches) - begin;
  steady.ops = {begin, begin};
  const auto goes_on = [&](std::int64_t op) {
    return op >= 0 && op + steady.apart < std::ssize(plan.ops) &&
           alike(plan, static_cast<OpId>(op), static_cast<OpId>(op) + steady.apart);
  };
  while (goes_on(steady.ops.begin - 1)) --steady.ops.begin;
  while (goes_on(steady.ops.end)) ++steady.ops.end;
  return steady;
}

}  // namespace

std::vector<BufferId> counterparts(const Plan& plan, std::int64_t least) {
  const std::vector<OpId> takes = takes_of(plan);
  Steady steady;
  for (std::int64_t m = least; m < 2 * least; ++m) {
    Steady other = steady_part(plan, takes, m);
    if (other.ops.count() > steady.ops.count()) steady = other;
  }
  const std::vector<OpId> born = births(plan);
  std::vector<BufferId> like(plan.buffers.size(), -1);
  for (auto i = static_cast<OpId>(steady.ops.begin); i < steady.ops.end; ++i) {
    const auto before = uses_of(plan.op(i)), behind = uses_of(plan.op(i + steady.apart));
    for (std::size_t k = 0; k < behind.size(); ++k) {
      const BufferId of = behind[k].buffer, other = before[k].buffer;
      const bool follows = at(born, other) < at(born, of) && !plan.buffer(of).persistent;
      if (follows && at(like, of) < 0) at(like, of) = other;
    }
  }
  return like;
}

bool goes_on_alike(const PlanInputs& in, const Plan& plan, const Repeat& repeat) {
  if (in.layout.mesh.pipeline * in.layout.pipeline.virtual_stages == 1) return true;
  const auto actions_of = [&](std::int64_t micro_batches) {
    return pipeline_actions(in.layout.pipeline, in.layout.mesh.pipeline, micro_batches,
                            plan.shape.purpose > PlanPurpose::evaluate);
  };
  const auto few = actions_of(plan.scheduled), all = actions_of(plan.shape.micro_batches);
  const auto few_receives = pipeline_receives(few, plan.place.pipeline),
             all_receives = pipeline_receives(all, plan.place.pipeline);
  const auto& some = at(few, plan.place.pipeline);
  const auto& every = at(all, plan.place.pipeline);
  const auto begin_of = [&](std::int64_t micro_batch) {
    return std::ranges::find(some, PipelineAction{.micro_batch = micro_batch}) - some.begin();
  };
  const std::int64_t first = plan.op(repeat.first).micro_batch,
                     second = begin_of(first + repeat.micro_batches),
                     length = second - begin_of(first), extra = (repeat.times - 1) * length;
  if (std::ssize(every) != std::ssize(some) + extra) return false;
  const auto later = [&](PipelineAction action, std::int64_t times) {
    action.micro_batch += times * repeat.micro_batches;
    return action;
  };
  for (std::int64_t i = 0; i < std::ssize(every); ++i) {
    const std::int64_t times = i < second ? 0 : std::min((i - second) / length, repeat.times - 1);
    const std::int64_t of_some = i - times * length;
    std::vector<PipelineAction> receives = at(few_receives, of_some);
    for (PipelineAction& r : receives) r = later(r, times);
    if (at(every, i) != later(at(some, of_some), times) || at(all_receives, i) != receives)
      return false;
  }
  return true;
}

}  // namespace tessera::plan
