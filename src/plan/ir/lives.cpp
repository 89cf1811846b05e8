#include "plan/ir/lives.hpp"

#include <algorithm>
#include <map>

namespace tessera::plan {

std::vector<Life> buffer_lives(const Plan& plan) {
  // An outgoing op (a send, a reduction) is issued at its place in the plan but may run long after.
  // Its buffers live until the next visit is over: otherwise compute would reuse their bytes, and
  // have to wait, at once.
  std::map<std::int32_t, std::int64_t> visit_end;
  for (std::size_t i = 0; i < plan.ops.size(); ++i)
    visit_end[plan.ops[i].visit] = static_cast<std::int64_t>(i);
  std::vector<Life> all(plan.buffers.size());
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    auto end = static_cast<std::int64_t>(i);
    if (row_of(op.stream).outgoing) {
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
