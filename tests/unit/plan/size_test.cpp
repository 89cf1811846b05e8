// What plans cost the host: a step of many micro-batches continues steps of few.
#include "plan/prediction/size.hpp"

#include "unit/plan/cases.hpp"

namespace tessera::plan {
namespace {

TEST(PlanSize, CountsWhatAPlanHolds) {
  const Case c = make_case(2, 2, 3, ReduceWhen::step);
  Plan plan = make_plan(c.inputs, c.shape, {});
  const std::int64_t before = held_bytes(plan);
  EXPECT_GT(before, std::ssize(plan.ops) * static_cast<std::int64_t>(sizeof(Op)));
  plan.ops.back().waits.push_back(0);
  EXPECT_EQ(held_bytes(plan), before + static_cast<std::int64_t>(sizeof(OpId)));
  plan.buffers.push_back({.name = std::string(100, 'x')});
  EXPECT_EQ(held_bytes(plan),
            before + static_cast<std::int64_t>(sizeof(OpId) + sizeof(Buffer)) + 101);
}

TEST(PlanSize, OfALongStepFollowsFromShortOnes) {
  for (const int stage : {0, 3}) {
    for (const std::int64_t stages : {1, 3}) {
      Case c = make_case(stage, 2, 40, ReduceWhen::step);
      c.inputs.layout.mesh.pipeline = stages;
      const Plan plan = make_plan(c.inputs, c.shape, {});
      const PlanSize size = size_of_step(c.inputs, c.shape, {});
      EXPECT_NEAR(size.operations, static_cast<double>(plan.ops.size()), 1);
      const auto bytes = static_cast<double>(held_bytes(plan));
      EXPECT_NEAR(size.bytes, bytes, 0.01 * bytes);
      EXPECT_GT(size.seconds, 0);
    }
  }
}

}  // namespace
}  // namespace tessera::plan
