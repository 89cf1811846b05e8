#include "plan/prediction/estimate.hpp"

#include <algorithm>

#include "plan/passes/make_plan.hpp"
#include "plan/prediction/ledger.hpp"

namespace tessera::plan {

FewMicroBatches::FewMicroBatches(const PlanInputs& in, const PlanShape& shape,
                                 std::int64_t micro_batches, const deck::Machine& machine,
                                 std::int64_t budget) {
  PlanShape few = shape;
  few.micro_batches = micro_batches;
  for (const MeshPlace& place : simulated_places(in)) {
    plans_.push_back(unproved_plan(in, few, place));
    costs_.push_back(op_costs(plans_.back(), machine));
    device_bytes_ = std::max(device_bytes_, plan::device_bytes(plans_.back().arena_bytes));
    if (budget != 0 && device_bytes_ > budget) return;
  }
}

Estimate FewMicroBatches::play() const {
  const Simulation s = simulate(plans_, costs_);
  return {.step = s.step, .computes = s.step * (1 - idle_share(s))};
}

FewMicroBatches::Computing FewMicroBatches::computing() const {
  Computing found;
  for (std::size_t r = 0; r < plans_.size(); ++r) {
    double seconds = 0;
    for (std::size_t i = 0; i < costs_[r].size(); ++i) {
      if (plans_[r].ops[i].stream == Stream::compute) seconds += costs_[r][i].seconds;
    }
    found.most = std::max(found.most, seconds);
    found.mean += seconds / static_cast<double>(plans_.size());
  }
  return found;
}

double continued(std::int64_t one, double at_one, std::int64_t two, double at_two,
                 std::int64_t all) {
  return at_one +
         static_cast<double>(all - one) / static_cast<double>(two - one) * (at_two - at_one);
}

Estimate continued(const PlanInputs& in, const Estimate& one, const Estimate& two,
                   std::int64_t micro_batches) {
  const std::int64_t round = in.layout.mesh.pipeline;
  const auto all = [&](double at_one, double at_two) {
    return continued(round, at_one, 2 * round, at_two, micro_batches);
  };
  const double computes = all(one.computes, two.computes);
  return {.step = std::max(all(one.step, two.step), computes), .computes = computes};
}

double estimate_step(const PlanInputs& in, const PlanShape& shape, const deck::Machine& machine) {
  const std::int64_t round = in.layout.mesh.pipeline;
  const auto of = [&](std::int64_t n) { return FewMicroBatches(in, shape, n, machine).play(); };
  if (shape.micro_batches <= 2 * round) return of(shape.micro_batches).step;
  return continued(in, of(round), of(2 * round), shape.micro_batches).step;
}

}  // namespace tessera::plan
