#include "train/stop.hpp"

#include <gtest/gtest.h>

#include <ctime>

namespace tessera::train {
namespace {

TEST(Stop, LeavesTimeForAStepAndItsCheckpointBeforeTheDeadline) {
  deck::RunSection run;
  run.deadline = std::time(nullptr) + 1000;
  const StopRequests requests(run, "no_such_directory", /*leads=*/true);
  EXPECT_EQ(requests.reason(0), std::nullopt);
  EXPECT_EQ(requests.reason(1001), "run.deadline");
}

TEST(Stop, TheTimeLimitCountsFromTheStart) {
  deck::RunSection run;
  run.time_limit = deck::Seconds{1000};
  EXPECT_EQ(StopRequests(run, "no_such_directory", /*leads=*/true).reason(1001), std::nullopt);
  run.time_limit = deck::Seconds{0};
  EXPECT_EQ(StopRequests(run, "no_such_directory", /*leads=*/true).reason(0), "run.time_limit");
}

TEST(Stop, OnlyTheLeaderReadsTheClock) {
  deck::RunSection run;
  run.deadline = std::time(nullptr) - 1000;
  EXPECT_EQ(StopRequests(run, "no_such_directory", true).reason(0), "run.deadline");
  EXPECT_EQ(StopRequests(run, "no_such_directory", false).reason(0), std::nullopt);
}

}  // namespace
}  // namespace tessera::train
