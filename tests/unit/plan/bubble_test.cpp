// The bubble against closed forms: (p - 1) / (v m + p - 1) for stages that cost the same (Narayanan
// et al. 2021, section 2.2).
#include "plan/prediction/bubble.hpp"

#include <gtest/gtest.h>

namespace tessera::plan {
namespace {

double bubble_of(PipelineSchedule schedule, std::int64_t p, std::int64_t m, std::int64_t v = 1) {
  const std::vector<double> costs(static_cast<std::size_t>(p * v), 0.25);
  return pipeline_bubble({.schedule = schedule, .virtual_stages = v, .first_layers = {}}, p, m,
                         costs);
}

double closed_form(std::int64_t p, std::int64_t m, std::int64_t v = 1) {
  return static_cast<double>(p - 1) / static_cast<double>(v * m + p - 1);
}

TEST(Bubble, IsTheClosedFormWhereStagesCostTheSame) {
  for (const std::int64_t p : {1, 2, 3, 4, 8}) {
    for (const std::int64_t m : {1, 2, 5, 8, 16}) {
      EXPECT_NEAR(bubble_of(PipelineSchedule::gpipe, p, m), closed_form(p, m), 1e-12);
      EXPECT_NEAR(bubble_of(PipelineSchedule::one_f_one_b, p, m), closed_form(p, m), 1e-12);
    }
  }
}

TEST(Bubble, IsSmallerWhereStagesHaveSeveralChunks) {
  for (const std::int64_t v : {2, 3}) {
    EXPECT_GE(bubble_of(PipelineSchedule::interleaved, 4, 8, v), closed_form(4, 8, v));
    EXPECT_LT(bubble_of(PipelineSchedule::interleaved, 4, 8, v), closed_form(4, 8));
  }
}

// At 1 : 1 : 1 no schedule with 1F1B's memory beats ZB-H1's p - 1 of 3 m + p - 1 (Qi et al. 2023).
TEST(Bubble, IsAThirdWhereWeightsCanWait) {
  for (const std::int64_t p : {2, 3, 4, 8, 16}) {
    for (const std::int64_t m : {p, p + 1, p + p / 2, 2 * p, 4 * p})
      EXPECT_NEAR(bubble_of(PipelineSchedule::zero_bubble, p, m), closed_form(p, m, 3), 1e-12);
    for (std::int64_t m = 1; m < p; ++m)
      EXPECT_LT(bubble_of(PipelineSchedule::zero_bubble, p, m), closed_form(p, m));
  }
}

TEST(Bubble, IsWhatTheSlowestStageMakesOfIt) {
  // One stage does everything: the other waits all the time.
  const std::vector<double> costs = {0, 1};
  EXPECT_NEAR(pipeline_bubble({}, 2, 8, costs), 0.5, 1e-12);
}

}  // namespace
}  // namespace tessera::plan
