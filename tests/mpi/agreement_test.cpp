// Ranks whose plans do not fit together find out before anything runs, all of them.
#include "train/execution/agreement.hpp"

#include <gtest/gtest.h>

#include "kernels/cpu/device.hpp"
#include "support/plan_run.hpp"
#include "world.hpp"

namespace tessera::test {
namespace {

class Agreement : public testing::Test {
 protected:
  /// Pipelines of two stages; data ranks beside each other.
  plan::PlanInputs inputs(bool tied) {
    auto config = gpt2_like();
    config.tied_embeddings = tied;
    auto in = plan_inputs_of(config, *device_, DType::f32);
    in.layout.mesh = {.tensor = 1, .data = session().size() / 2, .pipeline = 2};
    return in;
  }
  train::Plans plans(const plan::PlanInputs& in) const {
    train::Plans all;
    for (const std::int64_t micro_batches : {2, 3}) {
      const plan::PlanShape shape{.sequence = 6, .micro = 1, .micro_batches = micro_batches};
      all.emplace(shape, plan::make_plan(in, shape, in.layout.mesh.place_of(session().rank())));
    }
    return all;
  }
  /// The exit code that this rank is given; ok where the plans fit together.
  static ExitCode refusal(const train::Plans& plans, const plan::PlanInputs& in) {
    try {
      train::prove_together(plans, in, control());
      return ExitCode::ok;
    } catch (const AgreedError& e) {
      return e.exit_code();
    }
  }
  static plan::Op& first_of(train::Plans& plans, plan::OpKind kind) {
    return *std::ranges::find(plans.rbegin()->second.ops, kind, &plan::Op::kind);
  }

  std::unique_ptr<kernels::Device> device_ = kernels::make_cpu_device({});
};

TEST_F(Agreement, OfPlansThatFit) {
  if (session().size() < 2) GTEST_SKIP() << "needs 2 ranks";
  for (const bool tied : {false, true}) {
    const auto in = inputs(tied);
    const std::int64_t meetings = train::prove_together(plans(in), in, control());
    // Messages down and up of 2 + 3 micro-batches; of each shape the words, and the tied gradient
    // added up and gathered.
    const std::int64_t expected = 2 * (2 + 3) + 2 * (tied ? 3 : 1);
    EXPECT_EQ(meetings, control().rank() == 0 ? expected : 0) << "data ranks meet alike";
  }
}

// Of all data ranks or of the last one only, which then has a pipeline of its own kind.
TEST_F(Agreement, EveryRankIsToldOfAMessageThatNobodyExpects) {
  if (session().size() < 2) GTEST_SKIP() << "needs 2 ranks";
  const auto in = inputs(true);
  const MeshPlace place = in.layout.mesh.place_of(session().rank());
  for (const std::int64_t first : {std::int64_t{0}, in.layout.mesh.data - 1}) {
    auto mine = plans(in);
    if (place.pipeline == 0 && place.data >= first) {
      auto& call = std::get<comm::CollectiveCall>(first_of(mine, plan::OpKind::send).call);
      std::get<comm::Send>(call).peer = 0;
    }
    EXPECT_EQ(refusal(mine, in), ExitCode::internal);
  }
}

TEST_F(Agreement, DataRanksWithOtherCollectives) {
  if (session().size() < 4) GTEST_SKIP() << "needs 4 ranks";
  const auto in = inputs(false);
  auto mine = plans(in);
  if (session().rank() == 1) first_of(mine, plan::OpKind::reduce_gradients).unit += 1;
  EXPECT_EQ(refusal(mine, in), ExitCode::comm);
}

}  // namespace
}  // namespace tessera::test
