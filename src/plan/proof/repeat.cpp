#include "plan/proof/repeat.hpp"

#include "plan/ir/runs.hpp"
#include "plan/proof/reject.hpp"

namespace tessera::plan {

namespace {

/// Nobody but loads writes the rows that are taken; their number is cleared once, before the first
/// is taken (check_order: nothing is read before it is written), and is then that of those taken.
void check_rows(const Plan& plan) {
  const kernels::TakeRow* first = nullptr;
  for (const Op& op : plan.ops)
    if (first == nullptr) first = kernel_of<kernels::TakeRow>(op);
  if (first == nullptr) return;
  const BufferId rows = buffer_of(first->x), next = buffer_of(first->next);
  bool cleared = false;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    const auto* take = kernel_of<kernels::TakeRow>(op);
    const bool clears = kernel_of<kernels::Fill>(op) != nullptr && !cleared;
    for (const BufferUse& use : uses_of(op)) {
      if (use.access == kernels::Access::read) continue;
      if (use.buffer == rows && !std::holds_alternative<LoadBatch>(op.call))
        reject(plan, i, "writes where micro-batches are loaded");
      if (use.buffer != next) continue;
      if (take == nullptr && !clears) reject(plan, i, "changes which micro-batch is the next");
      cleared = true;
    }
    if (take == nullptr) continue;
    if (buffer_of(take->x) != rows || buffer_of(take->next) != next)
      reject(plan, i, "takes a micro-batch of others");
  }
}

}  // namespace

void check_repeat(const Plan& plan) {
  check_rows(plan);
  std::int64_t loaded = 0, taken = 0;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    if (std::holds_alternative<LoadBatch>(plan.ops[i].call)) {
      if (plan.ops[i].micro_batch != loaded)
        reject(plan, i, "loads another micro-batch than the next");
      ++loaded;
    }
    if (kernel_of<kernels::TakeRow>(plan.ops[i]) != nullptr)
      taken += times_of(plan, static_cast<OpId>(i));
  }
  const bool all_loaded =
      plan.shape.purpose == PlanPurpose::flush || loaded == plan.shape.micro_batches;
  if (!all_loaded || (taken > 0 && taken != loaded))
    throw InternalError(fmt::format("broken plan: {} of {} micro-batches are loaded, and {} taken",
                                    loaded, plan.shape.micro_batches, taken));
  if (!plan.repeat) {
    if (plan.scheduled != plan.shape.micro_batches)
      throw InternalError("broken plan: some micro-batches are not there");
    return;
  }
  const Repeat& r = *plan.repeat;
  if (r.first < 0 || r.ops <= 0 || r.times < 1 || r.end() > std::ssize(plan.ops) ||
      plan.scheduled + (r.times - 1) * r.micro_batches != plan.shape.micro_batches)
    throw InternalError("broken plan: what repeats is not there, or not as often as it must be");
  for (OpId i = r.first; i < r.second(); ++i)
    if (!repeats(plan, r, i))
      reject(plan, static_cast<std::size_t>(i), "repeats, but is not there a second time");
}

}  // namespace tessera::plan
