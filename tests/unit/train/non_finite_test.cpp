// Which tensor an infinity is in, where only a sum over ranks has it.
#include "train/guards/non_finite.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/cpu/device.hpp"
#include "memory/arena.hpp"
#include "support/plan_run.hpp"

namespace tessera::test {
namespace {

using plan::Plan;

/// A plan over memory of zeros.
class Zeros {
 public:
  Zeros(const plan::PlanInputs& inputs, const MeshPlace& place)
      : inputs_(inputs),
        plan_(plan::make_plan(inputs, {.sequence = 6, .micro = 1, .micro_batches = 2}, place)) {
    train::PlanMemory memory{};
    for (std::size_t i = 0; i < plan::kArenas; ++i) {
      arenas_.push_back(std::make_unique<memory::Arena>("arena", tier_, plan_.arena_bytes[i]));
      memory[i] = arenas_[i]->base();
      std::fill_n(memory[i], plan_.arena_bytes[i], std::byte{});
    }
    bound_.emplace(plan_, memory);
  }

  /// The operations that add a unit's summed gradient to the norm.
  std::vector<const train::BoundPlan::BoundOp*> norms(std::size_t unit) const {
    std::vector<const train::BoundPlan::BoundOp*> found;
    for (const auto& op : bound_->ops()) {
      if (op.op->kind == plan::OpKind::norm && op.op->unit == static_cast<std::int32_t>(unit))
        found.push_back(&op);
    }
    return found;
  }
  /// What is blamed where element `element` of what `op` reads is not finite.
  std::string blamed(const train::BoundPlan::BoundOp& op, std::int64_t element) {
    float& value = summed(op).as<float>()[element];
    value = std::numeric_limits<float>::infinity();
    train::NonFiniteFinder finder(plan_, inputs_, tier_);
    finder.hooks().after(op, {});
    value = 0;
    return finder.found() ? finder.found()->tensor : "";
  }
  const std::vector<train::BoundPlan::BoundOp>& ops() const { return bound_->ops(); }
  /// Whether something is found after `op` where row `row` of what it has written is not finite.
  bool finds(const train::BoundPlan::BoundOp& op, const View& written, std::int64_t row) {
    auto& value = written.as<float>()[row * written.ld];
    value = std::numeric_limits<float>::quiet_NaN();
    train::NonFiniteFinder finder(plan_, inputs_, tier_);
    finder.hooks().after(op, {});
    value = 0;
    return finder.found().has_value();
  }
  static View summed(const train::BoundPlan::BoundOp& op) {
    return std::get<kernels::ExactSum>(std::get<kernels::KernelCall>(op.call)).x;
  }

 private:
  const plan::PlanInputs& inputs_;
  Plan plan_;
  memory::HostTier tier_;
  std::vector<std::unique_ptr<memory::Arena>> arenas_;
  std::optional<train::BoundPlan> bound_;
};

// Every rank's contribution may be finite where their sum is not: its shard says whose it is.
TEST(NonFiniteFinder, NamesTheTensorOfASumThatOverflows) {
  const auto device = kernels::make_cpu_device({});
  for (const int stage : {0, 1, 2, 3}) {
    for (const std::int64_t rank : {0, 1, 2}) {
      auto inputs = plan_inputs_of(gpt2_like(), *device, DType::f32);
      inputs.sharding.stage = stage;
      inputs.layout.mesh.data = 3;
      Zeros run(inputs, {.data = rank});
      std::size_t named = 0;
      for (std::size_t u = 0; u < inputs.model.units.size(); ++u) {
        const auto& unit = inputs.model.units[u];
        const auto layout = zero::unit_layout(unit, inputs.layout.mesh.data);
        const auto norms = run.norms(u);
        ASSERT_EQ(norms.size(), 1U);  // one tensor rank answers for its whole shard
        for (const auto& slice : zero::slices_in(unit, layout, layout.shard_of(rank))) {
          const std::string& name = unit.params[slice.parameter].name;
          EXPECT_EQ(run.blamed(*norms[0], slice.flat - layout.shard_of(rank).begin),
                    "gradient of " + name)
              << "stage " << stage << ", rank " << rank;
          ++named;
        }
      }
      EXPECT_GT(named, 0U);
    }
  }
}

// Behind the rows that experts have made lies whatever was there before.
TEST(NonFiniteFinder, LooksAtRowsThatExpertsHaveMade) {
  const auto device = kernels::make_cpu_device({});
  auto inputs = plan_inputs_of(mixtral_like(), *device, DType::f32);
  inputs.layout.mesh.data = inputs.layout.mesh.experts = 2;
  Zeros run(inputs, {.data = 1});
  int made = 0, activated = 0, combined = 0;
  for (const auto& op : run.ops()) {
    const auto* kernel = std::get_if<kernels::KernelCall>(&op.call);
    if (kernel == nullptr) continue;
    if (const auto* product = std::get_if<kernels::ExpertLinear>(kernel)) {
      auto* begins = product->begins.as<std::int32_t>();
      for (std::int64_t e = 1; e < product->begins.elements(); ++e) begins[e] = 16;
      EXPECT_TRUE(run.finds(op, product->y, 15));
      EXPECT_FALSE(run.finds(op, product->y, 16));
      ++made;
    } else if (const auto* activate = std::get_if<kernels::Activate>(kernel)) {
      EXPECT_FALSE(run.finds(op, activate->y.matrix(), 16));
      ++activated;
    } else if (const auto* combine = std::get_if<kernels::CombineRows>(kernel)) {
      EXPECT_TRUE(run.finds(op, combine->out, 0));
      ++combined;
    }
  }
  EXPECT_GT(made, 0);
  EXPECT_GT(activated, 0);
  EXPECT_GT(combined, 0);
}

}  // namespace
}  // namespace tessera::test
