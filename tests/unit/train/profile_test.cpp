// Profiles: what is written is read again, a median step is found over restarts, and what is
// damaged or belongs to another plan is refused with its place.
#include "train/execution/profile.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/cpu/device.hpp"
#include "plan/prediction/compare.hpp"
#include "support/plan_run.hpp"
#include "support/temporary_directory.hpp"

namespace tessera::train {
namespace {

using std::chrono::microseconds;

class ProfileTest : public testing::Test {
 protected:
  ProfileTest() { std::filesystem::create_directory(directory_ / "profile"); }

  plan::PlanInputs inputs(DType compute = DType::f32, std::int64_t data = 2) {
    auto in = test::plan_inputs_of(test::gpt2_like(), *device_, compute);
    in.layout.mesh.data = data;
    return in;
  }
  plan::Plan plan_of(std::int64_t rank, const plan::PlanShape& shape) {
    const auto in = inputs();
    return make_plan(in, shape, in.layout.mesh.place_of(rank));
  }
  /// A line of a step that begins at `at` and whose op i takes from i to i + 1 microseconds, the
  /// step two microseconds more.
  std::string line(std::int64_t rank, std::int64_t step, const std::string& id, microseconds at,
                   const plan::PlanShape& shape = kTrain, double longer = 0,
                   comm::ClockOffset clock = {}) {
    const plan::Plan plan = plan_of(rank, shape);
    ProfiledStep p{.step = step, .id = id, .clock = clock, .times = {}};
    p.times.begin = StepProfile{}.begin + at;
    for (std::size_t i = 0; i < plan.ops.size(); ++i) {
      const auto begin = static_cast<double>(i);
      p.times.ops.push_back({begin * 1e-6, (begin + 1) * 1e-6});
    }
    p.times.seconds = (static_cast<double>(plan.ops.size()) + 2) * 1e-6 + longer;
    return profile_line(p, plan, inputs()) + "\n";
  }
  void write(std::int64_t rank, const std::string& text) {
    test::write_file(directory_ / fmt::format("profile/rank_{:05}.jsonl", rank), text);
  }
  MeasuredStep read() { return read_profile(directory_.path(), inputs(), kShapes); }
  template <typename E>
  std::string refusal() {
    return test::message_of<E>([&] { read(); });
  }

  static constexpr plan::PlanShape kTrain{.sequence = 7, .micro = 1, .micro_batches = 1},
      kLarger{.sequence = 7, .micro = 1, .micro_batches = 2};
  static constexpr std::array kShapes{kTrain, kLarger};
  test::TemporaryDirectory directory_;
  std::unique_ptr<kernels::Device> device_ = kernels::make_cpu_device({});
};

TEST_F(ProfileTest, IsReadAsItWasWritten) {
  write(0, line(0, 4, "a", microseconds(5'000'000)));
  // By a clock 3 s ahead, rank 1 began 10 us later than rank 0.
  write(1, line(1, 4, "a", microseconds(8'000'010), kTrain, 0, {.ahead = 3, .error = 7e-6}));
  const MeasuredStep m = read();
  EXPECT_EQ(m.step, 4);
  EXPECT_EQ(m.shape, kTrain);
  EXPECT_DOUBLE_EQ(m.clock_error, 7e-6);
  ASSERT_EQ(m.ranks.size(), 2u);
  // Microseconds are written rounded to a nanosecond.
  for (std::size_t r = 0; r < 2; ++r) {
    const plan::TimedRank& rank = m.ranks[r];
    const double begin = r == 0 ? 0 : 10e-6;
    EXPECT_EQ(plan_hash(rank.plan), plan_hash(plan_of(static_cast<std::int64_t>(r), kTrain)));
    EXPECT_NEAR(rank.begin, begin, 1e-9);
    ASSERT_EQ(rank.ops.size(), rank.plan.ops.size());
    for (std::size_t i = 0; i < rank.ops.size(); ++i) {
      EXPECT_NEAR(rank.ops[i].begin, begin + static_cast<double>(i) * 1e-6, 2e-9);
      EXPECT_NEAR(rank.ops[i].end, begin + static_cast<double>(i + 1) * 1e-6, 2e-9);
    }
  }
  const auto ops = static_cast<double>(m.ranks[0].ops.size());
  EXPECT_NEAR(length_of(m.ranks), (10 + ops + 2) * 1e-6, 2e-9);
}

TEST_F(ProfileTest, TheMedianStepThatAllRanksHaveCounts) {
  const auto file = [&](std::int64_t rank) {
    const auto at = microseconds(1'000'000);
    return line(rank, 2, "a", at, kLarger) +      // of another plan
           line(rank, 3, "b", at, kTrain, 9) +    // done again below
           line(rank, 4, "c", at, kTrain, 0.5) +  // the longest
           line(rank, 3, "d", at, kTrain, 0.3) + line(rank, 5, "e", at, kTrain, 0.1);
  };
  write(0, file(0) + line(0, 6, "f", microseconds(1)));  // killed before rank 1 had written its own
  write(1, file(1) + line(1, 6, "f", microseconds(1)).substr(0, 200));
  const MeasuredStep m = read();
  EXPECT_EQ(m.of, (std::vector<std::int64_t>{3, 4, 5}));
  EXPECT_EQ(m.step, 3);
  EXPECT_NEAR(length_of(m.ranks), 0.3, 1e-3);
}

TEST_F(ProfileTest, AnotherPlanOfTheRunIsFound) {
  for (int rank : {0, 1}) write(rank, line(rank, 2, "a", microseconds(1), kLarger));
  EXPECT_EQ(read().shape, kLarger);
}

TEST_F(ProfileTest, OfAnotherLayoutDeckOrNoneIsRefused) {
  EXPECT_NE(refusal<DeckError>().find("rank_00000.jsonl is not there"), std::string::npos);
  const std::string text = line(0, 2, "a", microseconds(1));
  write(0, "");
  EXPECT_NE(refusal<DeckError>().find("no finished step"), std::string::npos);
  write(0, text.substr(0, text.size() - 1));
  EXPECT_NE(refusal<DeckError>().find("no finished step"), std::string::npos);
  write(0, text);
  write(1, line(1, 3, "b", microseconds(1)));
  EXPECT_NE(refusal<DeckError>().find("other ranks did not finish it"), std::string::npos);
  write(1, line(1, 2, "a", microseconds(1)));
  EXPECT_EQ(read().step, 2);

  const auto with = [&](const plan::PlanInputs& in) {
    return test::message_of<DeckError>([&] { read_profile(directory_.path(), in, kShapes); });
  };
  const std::string bf16 = with(inputs(DType::bf16));
  EXPECT_NE(bf16.find("rank_00000.jsonl:1: step 2 ran another plan"), std::string::npos) << bf16;
  const std::string alone = with(inputs(DType::f32, 1));
  EXPECT_NE(alone.find("profile of 2 ranks on 1 node, 2 data x 1 pipeline x 1 tensor, but this "
                       "plan is for 1 rank on 1 node, "),
            std::string::npos)
      << alone;
  auto nodes = inputs();
  nodes.layout.node_of = {0, 1};
  EXPECT_NE(with(nodes).find("--nodes"), std::string::npos);
}

TEST_F(ProfileTest, WhatIsDamagedIsRefusedWithItsPlace) {
  const std::string good = line(0, 2, "a", microseconds(1));
  write(1, line(1, 2, "a", microseconds(1)));
  const auto damaged = [&](std::string_view what, std::string_view by) {
    std::string text = good;
    text.replace(text.find(what), what.size(), by);
    write(0, good + text);
    return refusal<DataError>();
  };
  const auto expect = [&](std::string_view what, std::string_view by, std::string_view place) {
    const std::string message = damaged(what, by);
    EXPECT_NE(message.find("rank_00000.jsonl:2: "), std::string::npos) << message;
    EXPECT_NE(message.find(place), std::string::npos) << message;
  };
  expect("{\"format\"", "[\"format\"", "not valid JSON");
  expect("\"format\":1", "\"format\":2", "$.format");
  expect("\"step\":2", "\"step\":0", "$.step");
  expect("\"step\":2", "\"step\":\"2\"", "$.step");
  expect("\"rank\":0", "\"rank\":1", "$.rank");
  expect("\"mesh\":{", "\"mesh\":[{", "not valid JSON");
  expect("\"data\":2", "\"data\":-2", "$.mesh.data");
  expect("\"at_us\":", "\"at_us\":-", "$.at_us");
  expect("\"at_us\":1.0", "\"at_us\":1e300", "$.at_us");
  expect("\"us\":", "\"us\":null,\"was\":", "\"us\" is missing");
  expect("\"stream\":[\"compute\"", "\"stream\":[\"computer\"", "$.stream[0]");
  expect("\"stream\":[", "\"stream\":[\"compute\",", "$.begin_us");
  expect("\"begin_us\":[0.0", "\"begin_us\":[-1", "$.begin_us[0]");
  expect("\"begin_us\":[0.0", "\"begin_us\":[7", "$.end_us[0]");
  expect("\"stream\":[\"compute\"", "\"stream\":[\"gather\"", "$.stream");

  // Whatever part of it is there, it is read or refused.
  for (std::size_t n = 0; n < good.size(); n += 41) {
    write(0, good.substr(0, n) + "\n");
    EXPECT_FALSE(refusal<DataError>().empty()) << n;
  }
}

TEST_F(ProfileTest, AnExecutorFillsItAndComputesTheSame) {
  const auto in = inputs(DType::f32, 1);
  const auto losses = [&](StepProfile* profile) {
    test::PlanRun run(in, *device_, kTrain);
    run.state().set_parameters(test::test_values(11));
    const auto shown = run.step(40, {}, profile);
    return std::pair(shown.loss, shown.gradients);
  };
  StepProfile profile;
  EXPECT_EQ(losses(&profile), losses(nullptr));
  const plan::Plan plan = make_plan(in, kTrain, {});
  ASSERT_EQ(profile.ops.size(), plan.ops.size());
  double end = 0;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    EXPECT_GE(profile.ops[i].end, profile.ops[i].begin);
    if (plan.ops[i].stream == Stream::compute) {
      EXPECT_GE(profile.ops[i].begin, end) << "op " << i;
      end = profile.ops[i].end;
    }
    for (const plan::OpId w : plan.ops[i].waits)
      EXPECT_GE(profile.ops[i].begin, profile.ops[static_cast<std::size_t>(w)].end);
  }
  EXPECT_GE(profile.seconds, end);
}

}  // namespace
}  // namespace tessera::train
