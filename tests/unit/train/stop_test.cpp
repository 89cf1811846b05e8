#include "train/guards/stop.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <ctime>

#include "support/temporary_directory.hpp"

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

TEST(Stop, AFileNamedStopIsARequestAndADirectoryIsNone) {
  const test::TemporaryDirectory directory;
  const StopRequests requests({}, directory.path(), /*leads=*/true);
  std::filesystem::create_directory(directory / "stop");
  EXPECT_EQ(requests.reason(0), std::nullopt);
  EXPECT_FALSE(requests.obeyed());
  EXPECT_TRUE(std::filesystem::exists(directory / "stop")) << "it is not ours";
  std::filesystem::remove(directory / "stop");
  test::write_file(directory / "stop", "");
  EXPECT_EQ(requests.reason(0), "the file " + (directory / "stop").string());
  EXPECT_TRUE(requests.obeyed());
  EXPECT_EQ(requests.reason(0), std::nullopt);
}

/// What the process does about SIGHUP before and after.
class HangUp : public testing::Test {
 protected:
  void SetUp() override { sigaction(SIGHUP, nullptr, &before_); }
  void TearDown() override { sigaction(SIGHUP, &before_, nullptr); }
  /// The handler of SIGHUP once stop signals are caught.
  static auto handler_after(void (*handler)(int)) {
    signal(SIGHUP, handler);
    catch_stop_signals();
    struct sigaction now = {};
    sigaction(SIGHUP, nullptr, &now);
    return now.sa_handler;
  }

 private:
  struct sigaction before_ = {};
};

TEST_F(HangUp, StopsUnlessItIsIgnoredFromTheStart) {
  EXPECT_EQ(handler_after(SIG_IGN), SIG_IGN) << "under nohup";
  EXPECT_NE(handler_after(SIG_DFL), SIG_DFL);
}

}  // namespace
}  // namespace tessera::train
