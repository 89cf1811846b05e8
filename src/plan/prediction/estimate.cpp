#include "plan/prediction/estimate.hpp"

#include <algorithm>

#include "plan/passes/make_plan.hpp"
#include "plan/passes/place_waits.hpp"
#include "plan/passes/weave.hpp"
#include "plan/prediction/ledger.hpp"

namespace tessera::plan {

FewMicroBatches::FewMicroBatches(const PlanInputs& in, const PlanShape& shape,
                                 std::int64_t micro_batches, const deck::Machine& machine,
                                 std::int64_t budget)
    : micro_batches_(micro_batches) {
  PlanShape few = shape;
  few.micro_batches = micro_batches;
  for (const MeshPlace& place : simulated_places(in)) {
    plans_.push_back(whole_plan(in, few, place));
    costs_.push_back(op_costs(plans_.back(), machine));
    device_bytes_ = std::max(device_bytes_, plan::device_bytes(plans_.back().arena_bytes));
    if (budget != 0 && device_bytes_ > budget) return;
  }
}

Estimate FewMicroBatches::play() && {
  for (Plan& plan : plans_) place_waits(plan);
  const Simulation s = simulate(plans_, costs_);
  return {.step = s.step, .computes = s.step * (1 - idle_share(s))};
}

namespace {
/// Whether a kernel takes every micro-batch no less than the first. Gradients are summed once, if
/// not more often, and the first backward of the embedding clears the whole table's.
bool recurs(const Op& op) {
  if (op.kind != OpKind::kernel || op.micro_batch < 0) return false;
  return !std::holds_alternative<kernels::EmbedBackward>(std::get<kernels::KernelCall>(op.call));
}
}  // namespace

FewMicroBatches::Computing FewMicroBatches::computing(std::int64_t all) const {
  Computing found;
  for (std::size_t r = 0; r < plans_.size(); ++r) {
    double once = 0, each = 0;
    for (std::size_t i = 0; i < costs_[r].size(); ++i) {
      const Op& op = plans_[r].ops[i];
      if (op.stream != Stream::compute) continue;
      (recurs(op) ? each : once) += costs_[r][i].seconds;
    }
    const double seconds =
        once + each * static_cast<double>(all) / static_cast<double>(micro_batches_);
    found.most = std::max(found.most, seconds);
    found.mean += seconds / static_cast<double>(plans_.size());
  }
  return found;
}

Estimate continued(const PlanInputs& in, const Estimate& one, const Estimate& two,
                   std::int64_t micro_batches) {
  const std::int64_t round = schedule_round(in);
  const auto all = [&](double at_one, double at_two) {
    return at_one + static_cast<double>(micro_batches - round) / static_cast<double>(round) *
                        (at_two - at_one);
  };
  const double computes = all(one.computes, two.computes);
  return {.step = std::max(all(one.step, two.step), computes), .computes = computes};
}

double estimate_step(const PlanInputs& in, const PlanShape& shape, const deck::Machine& machine) {
  const std::int64_t round = schedule_round(in);
  const auto of = [&](std::int64_t n) { return FewMicroBatches(in, shape, n, machine).play(); };
  if (shape.micro_batches <= 2 * round) return of(shape.micro_batches).step;
  return continued(in, of(round), of(2 * round), shape.micro_batches).step;
}

}  // namespace tessera::plan
