// A step over streams of the CPU: order, times, and what the caller waited for.
#include "streams/host_streams.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "streams/background.hpp"

namespace tessera::streams {
namespace {

using namespace std::chrono_literals;

/// Done once it was looked at after `until`.
class Until : public Task {
 public:
  explicit Until(std::chrono::steady_clock::time_point until) : until_(until) {}
  Progress advance() override {
    return std::chrono::steady_clock::now() < until_ ? Progress::idle : Progress::done;
  }

 private:
  std::chrono::steady_clock::time_point until_;
};

HostStreams make_streams() { return HostStreams(std::make_unique<BackgroundStreams>()); }

TEST(HostStreams, TellWhereTheTimeWent) {
  HostStreams streams = make_streams();
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(streams.begin({.works = 4, .timing = Timing::works}));
    bool gathered = false;
    streams.enqueue({.stream = 1}, [&]() -> std::unique_ptr<Task> {
      gathered = true;
      return std::make_unique<Until>(std::chrono::steady_clock::now() + 20ms);
    });
    streams.run({.part = 1}, [] { std::this_thread::sleep_for(2ms); });
    streams.run({.waits = {{.stream = 1, .count = 1}}, .part = 3}, [&] { EXPECT_TRUE(gathered); });
    streams.enqueue({.stream = 2, .waits = {{.stream = kCompute, .count = 2}}},
                    []() -> std::unique_ptr<Task> { return nullptr; });
    const Times t = streams.finish();
    ASSERT_EQ(t.parts.size(), 4U);
    EXPECT_GE(t.parts[1], 2e-3);
    EXPECT_EQ(t.parts[2], 0);
    EXPECT_GT(t.waited[1], 0);
    EXPECT_LE(t.parts[1] + t.parts[3] + t.waited[1] + t.waited[2], t.total);
    ASSERT_EQ(t.works.size(), 4U);
    EXPECT_GE(t.works[0].end - t.works[0].begin, 20e-3);
    EXPECT_GE(t.works[2].begin, t.works[0].end);
    EXPECT_GE(t.works[3].begin, t.works[2].end);
    EXPECT_GE(t.total, t.works[3].end);
  }
}

TEST(HostStreams, ThrowAtTheEndWhatBackgroundWorkThrew) {
  HostStreams streams = make_streams();
  ASSERT_TRUE(streams.begin({.works = 1}));
  streams.enqueue({.stream = 3},
                  []() -> std::unique_ptr<Task> { throw std::runtime_error("broken"); });
  EXPECT_THROW(streams.finish(), std::runtime_error);
}

}  // namespace
}  // namespace tessera::streams
