#include "plan/ir/lives.hpp"

#include <algorithm>
#include <map>

namespace tessera::plan {

namespace {

/// The last op before one of another stream that uses what an op writes, up to op `last`; itself
/// where there is none. From then on it is known to be over.
std::int64_t before_first_use(const Plan& plan, std::size_t op, std::int64_t last) {
  std::vector<BufferUse> written = uses_of(plan.ops[op]);
  std::erase_if(written, [](const BufferUse& u) { return u.access == kernels::Access::read; });
  for (std::size_t i = op + 1; i <= static_cast<std::size_t>(last); ++i) {
    if (plan.ops[i].stream == plan.ops[op].stream) continue;
    for (const BufferUse& use : uses_of(plan.ops[i])) {
      const bool used = std::ranges::any_of(written, [&](const BufferUse& w) {
        return w.buffer == use.buffer && !intersect(w.bytes, use.bytes).empty();
      });
      if (used) return static_cast<std::int64_t>(i) - 1;
    }
  }
  return static_cast<std::int64_t>(op);
}

}  // namespace

std::vector<Life> buffer_lives(const Plan& plan) {
  // An op of another stream than compute's is issued at its place in the plan but may run long
  // after.
  std::map<std::int32_t, std::int64_t> visit_end;
  for (std::size_t i = 0; i < plan.ops.size(); ++i)
    visit_end[plan.ops[i].visit] = static_cast<std::int64_t>(i);
  std::vector<Life> all(plan.buffers.size());
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    auto end = static_cast<std::int64_t>(i);
    const Holds holds = row_of(op.stream).holds;
    if (holds == Holds::used) end = before_first_use(plan, i, visit_end.at(op.visit));
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

}  // namespace tessera::plan
