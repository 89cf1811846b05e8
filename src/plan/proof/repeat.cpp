#include "plan/proof/repeat.hpp"

#include "plan/ir/runs.hpp"
#include "plan/proof/reject.hpp"

namespace tessera::plan {

void check_repeat(const Plan& plan) {
  std::int64_t loaded = 0, taken = 0;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    if (std::holds_alternative<LoadBatch>(plan.ops[i].call)) ++loaded;
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
