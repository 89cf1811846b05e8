#include "plan/ir/lives.hpp"

#include <algorithm>
#include <map>

#include "core/range_map.hpp"

namespace tessera::plan {

namespace {

/// The op before that of compute which uses some bytes, or what they lead to; the largest number
/// where none does.
struct BeforeUse {
  std::int64_t op = std::numeric_limits<std::int64_t>::max();
};

/// Of each op the last one before compute uses what it leads to, by way of whichever streams: from
/// then on it is known to be over. Itself where compute uses nothing of it.
std::vector<std::int64_t> before_computes_use(const Plan& plan) {
  std::vector<RangeMap<BeforeUse>> used(plan.buffers.size());  // by later ops
  std::vector<std::int64_t> before(plan.ops.size());
  for (std::size_t i = plan.ops.size(); i-- > 0;) {
    const std::vector<BufferUse> uses = uses_of(plan.ops[i]);
    std::int64_t first = BeforeUse{}.op;
    for (const BufferUse& use : uses) {
      if (use.access == kernels::Access::read) continue;
      at(used, use.buffer).each(use.bytes, [&](BeforeUse& use_of) {
        first = std::min(first, use_of.op);
      });
    }
    const auto own = static_cast<std::int64_t>(i);
    before[i] = first == BeforeUse{}.op ? own : first;
    if (plan.ops[i].stream == Stream::compute) first = own - 1;
    for (const BufferUse& use : uses) {
      if (use.access == kernels::Access::write) continue;
      at(used, use.buffer).each(use.bytes, [&](BeforeUse& use_of) {
        use_of.op = std::min(use_of.op, first);
      });
    }
  }
  return before;
}

}  // namespace

std::vector<Life> buffer_lives(const Plan& plan) {
  // An op of another stream than compute's is issued at its place in the plan but may run long
  // after.
  std::map<std::int32_t, std::int64_t> visit_end;
  for (std::size_t i = 0; i < plan.ops.size(); ++i)
    visit_end[plan.ops[i].visit] = static_cast<std::int64_t>(i);
  const std::vector<std::int64_t> before = before_computes_use(plan);
  std::vector<Life> all(plan.buffers.size());
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    auto end = static_cast<std::int64_t>(i);
    const Holds holds = row_of(op.stream).holds;
    if (holds == Holds::used) end = before[i];
    if (holds == Holds::next_visit) {
      const auto next = visit_end.find(op.visit + 1);
      if (next != visit_end.end()) end = std::max(end, next->second);
    }
    for (const BufferUse& use : uses_of(op)) {
      Life& life = at(all, use.buffer);
      life.begin = std::min(life.begin, static_cast<std::int64_t>(i));
      life.end = std::max(life.end, end);
    }
  }
  return all;
}

std::vector<OpId> births(const Plan& plan) {
  std::vector<OpId> born(plan.buffers.size(), -1);
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    for (const BufferUse& use : uses_of(plan.ops[i]))
      if (OpId& first = at(born, use.buffer); first < 0) first = static_cast<OpId>(i);
  }
  return born;
}

}  // namespace tessera::plan
