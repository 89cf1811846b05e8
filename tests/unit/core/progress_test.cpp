#include "core/progress.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "core/bytes.hpp"

namespace tessera {
namespace {

using namespace std::chrono_literals;

/// What a screen was shown, with a clock that a test turns.
struct Shown {
  std::vector<std::string> lines;
  SteadyClock::time_point now;
  Screen screen() {
    return {.write = [this](std::string_view text) { lines.emplace_back(text); },
            .now = [this] { return now; }};
  }
};

TEST(ProgressLine, DrawsNothingOfWhatIsQuick) {
  Shown shown;
  {
    ProgressLine progress("loading", ProgressLine::Unit::things, shown.screen());
    shown.now += 499ms;
    for (int i = 0; i <= 100; ++i) progress.at(i, 100);
  }
  EXPECT_TRUE(shown.lines.empty());
}

TEST(ProgressLine, IsThrottledByTimeAndTakenAway) {
  Shown shown;
  {
    ProgressLine progress("loading a\x1b[31m", ProgressLine::Unit::things, shown.screen());
    for (int i = 1; i <= 100; ++i) {  // two seconds
      shown.now += 20ms;
      progress.at(i, 100);
    }
    ASSERT_EQ(shown.lines.size(), 8U);  // at 500, 700, ... 1900 ms
    EXPECT_EQ(shown.lines[0],
              "\r\x1b[K\x1b[?7lloading a\\x1b[31m: 25 %, 25 of 100, 2s left\x1b[?7h");
    EXPECT_EQ(shown.lines[7],
              "\r\x1b[K\x1b[?7lloading a\\x1b[31m: 95 %, 95 of 100, 0s left\x1b[?7h");
  }
  ASSERT_EQ(shown.lines.size(), 9U);
  EXPECT_EQ(shown.lines[8], "\r\x1b[K");
}

TEST(ProgressLine, SaysHowMuchWhereTheTotalIsNotKnown) {
  Shown shown;
  ProgressLine progress("reading", ProgressLine::Unit::bytes, shown.screen());
  shown.now += 1s;
  progress.at(3 << 20, 0);
  ASSERT_EQ(shown.lines.size(), 1U);
  EXPECT_EQ(shown.lines[0], "\r\x1b[K\x1b[?7lreading: 3.00 MiB\x1b[?7h");
}

TEST(ProgressLine, IsSilentWithoutAScreen) {
  EXPECT_FALSE(Screen::terminal(1).write) << "rank 0 draws for all";
  ProgressLine progress("reading", ProgressLine::Unit::bytes, Screen::none());
  progress.at(1, 2);
}

TEST(Clock, DurationsForPeople) {
  for (const auto& [seconds, text] :
       std::initializer_list<std::pair<double, const char*>>{{-1, "0s"},
                                                             {59.4, "59s"},
                                                             {59.6, "1m00s"},
                                                             {598, "9m58s"},
                                                             {725, "12m"},
                                                             {5820, "1h37m"},
                                                             {48600, "13h"},
                                                             {284400, "3d07h"},
                                                             {1e6, "11d"},
                                                             {1e300, "1000000d"}}) {
    EXPECT_EQ(duration_text(seconds), text) << seconds;
  }
}

TEST(Clock, MomentsAreUtc) {
  EXPECT_EQ(utc_text(std::chrono::system_clock::from_time_t(1772337906)), "2026-03-01 04:05:06Z");
}

TEST(HumanNumbers, AreInTheUnitThatTheyAreRoundedTo) {
  for (const auto& [n, text] : {std::pair{0.0, "0"},
                                {812.4, "812"},
                                {999.6, "1.0k"},
                                {999949.0, "999.9k"},
                                {999960.0, "1.0M"},
                                {999.96e6, "1.00B"},
                                {1.254e9, "1.25B"}})
    EXPECT_EQ(human_count(n), text) << n;
  for (const auto& [bytes, text] : {std::pair<std::int64_t, const char*>{410, "0.4 KiB"},
                                    {(1 << 20) - 100, "1023.9 KiB"},
                                    {(1 << 20) - 10, "1.00 MiB"},
                                    {(1 << 30) - 1000, "1.00 GiB"},
                                    {3 * (1LL << 29), "1.50 GiB"}})
    EXPECT_EQ(human_bytes(bytes), text) << bytes;
}

TEST(CountText, HasASingular) {
  EXPECT_EQ(count_text(0, "rank"), "0 ranks");
  EXPECT_EQ(count_text(1, "rank"), "1 rank");
  EXPECT_EQ(count_text(2, "rank"), "2 ranks");
  EXPECT_EQ(count_text(1, "micro-batch", "micro-batches"), "1 micro-batch");
  EXPECT_EQ(count_text(4, "micro-batch", "micro-batches"), "4 micro-batches");
}

}  // namespace
}  // namespace tessera
