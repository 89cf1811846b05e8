#include "train/report/run_directory.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <regex>

#include "deck/load.hpp"
#include "support/temporary_directory.hpp"
#include "train/report/moved_rate.hpp"
#include "train/report/resolved.hpp"
#include "train/report/step_line.hpp"

namespace tessera::train {
namespace {

using namespace std::chrono_literals;

TEST(RunLock, NamesTheHolderToWhoComesSecond) {
  const test::TemporaryDirectory directory;
  const RunLock first(directory / "run");
  const std::string message =
      test::message_of<DeckError>([&] { const RunLock second(directory / "run", 10ms); });
  EXPECT_NE(message.find(fmt::format("process {} on ", ::getpid())), std::string::npos) << message;
  EXPECT_NE(message.find((directory / "run").string()), std::string::npos) << message;
  EXPECT_NE(message.find("run.dir"), std::string::npos) << message;
}

TEST(RunLock, IsFreeOnceTheHolderIsGone) {
  const test::TemporaryDirectory directory;
  { const RunLock first(directory / "run"); }
  const RunLock second(directory / "run", 0ms);
}

TEST(RunLock, IsPerDirectory) {
  const test::TemporaryDirectory directory;
  const RunLock first(directory / "a"), second(directory / "b", 0ms);
}

TEST(RunLock, SaysWhyADirectoryCannotBeMade) {
  const test::TemporaryDirectory directory;
  test::write_file(directory / "file", "");
  const std::string message =
      test::message_of<IoError>([&] { const RunLock lock(directory / "file/run"); });
  EXPECT_NE(message.find("file/run"), std::string::npos) << message;
}

TEST(RunLock, NoticesThatItsDirectoryIsGone) {
  const test::TemporaryDirectory directory;
  const auto run = directory / "run", moved = directory / "moved";
  const RunLock lock(run);
  lock.check();
  std::filesystem::rename(run, moved);
  const auto expect_gone = [&] {
    const std::string message = test::message_of<IoError>([&] { lock.check(); });
    EXPECT_NE(message.find(run.string() + " is gone"), std::string::npos) << message;
  };
  expect_gone();
  { const RunLock other(run); }  // a new directory of the same name
  expect_gone();
  std::filesystem::remove_all(run);
  std::filesystem::rename(moved, run);
  lock.check();
}

TEST(Reporter, SaysWhenEachLineAndEventWas) {
  const test::TemporaryDirectory directory;
  const auto now = [] {  // to a millisecond, as events have it
    using std::chrono::floor, std::chrono::milliseconds, std::chrono::system_clock;
    const auto since = floor<milliseconds>(system_clock::now()).time_since_epoch();
    return static_cast<double>(since.count()) / 1e3;
  };
  const double before = now();
  Reporter report(directory.path());
  report.say("one\n  two");
  report.event({{"event", "step"}, {"step", 7}});
  const std::string stamp = "\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\dZ ";
  const std::string log = test::read_file(directory / "log.txt");
  EXPECT_TRUE(std::regex_match(log, std::regex(stamp + "one\n" + stamp + "  two\n"))) << log;
  const auto event = nlohmann::json::parse(test::read_file(directory / "metrics.jsonl"));
  EXPECT_EQ(event.at("step"), 7);
  EXPECT_GE(event.at("time"), before);
  EXPECT_LE(event.at("time"), now());
}

TEST(Reporter, StampsWholeReports) {
  EXPECT_EQ(stamped(""), "");
  const std::string report = stamped("one\ntwo\n");
  EXPECT_TRUE(std::regex_match(report, std::regex("[^Z]+Z one\n[^Z]+Z two\n"))) << report;
}

deck::Deck deck_of(const std::string& more) {
  return deck::parse_deck(
             "run.steps = 60\nmodel.family = \"gpt2\"\nmodel.preset = \"gpt2_124m\"\n"
             "data.train = [\"none\"]\nbatch.global = 1\noptimizer.lr = 1.0\n" +
                 more,
             "deck.toml")
      .deck;
}

TEST(Resolved, EachDifferentStartIsKept) {
  const test::TemporaryDirectory directory;
  EXPECT_FALSE(last_resolved(directory.path()));
  const deck::Deck first = deck_of(""), longer = deck_of("run.seed = 7\n");
  const auto start = [&](const deck::Deck& deck) { write_resolved(deck, directory.path()); };
  const auto kept = [&](const char* name) { return test::read_file(directory / name); };
  start(first);
  start(first);
  start(deck_of("run.deadline = 1772337906\n"));  // another moment, not another run
  EXPECT_FALSE(std::filesystem::exists(directory / "resolved.1.toml"));
  EXPECT_NE(kept("resolved.toml").find("deadline = 1772337906"), std::string::npos);
  start(longer);
  start(first);
  EXPECT_NE(kept("resolved.1.toml").find("deadline = 1772337906"), std::string::npos);
  EXPECT_EQ(kept("resolved.2.toml"), to_toml(longer));
  EXPECT_EQ(last_resolved(directory.path()), first);
  test::write_file(directory / "resolved.toml", "of another version");
  EXPECT_FALSE(last_resolved(directory.path()));
  start(first);
  EXPECT_EQ(kept("resolved.3.toml"), "of another version");
  for (const char* other : {"resolved.01.toml", "resolved.9.toml.tmp", "resolved.x.toml",
                            "resolved.9223372036854775807.toml"})
    test::write_file(directory / other, "");
  std::filesystem::remove(directory / "resolved.1.toml");  // somebody tidied up
  start(longer);
  EXPECT_EQ(kept("resolved.4.toml"), to_toml(first));
  const auto names = kept_resolved(directory.path());
  ASSERT_EQ(names.size(), 3U);
  EXPECT_EQ(names[0], directory / "resolved.2.toml") << "the oldest first";
  EXPECT_EQ(names[2], directory / "resolved.4.toml");
  test::write_file(directory / "resolved.2147483647.toml", "somebody's");
  start(first);
  EXPECT_EQ(kept("resolved.2147483648.toml"), to_toml(longer));
  const auto all = changes(first, longer);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].key, "run.seed");
}

TEST(MovedRate, IsBlamedOnAllThatMovedIt) {
  const deck::Deck before = deck_of("schedule.kind = \"cosine\"\nschedule.warmup_steps = 2\n");
  const Course::MovedRate moved{.steps_before = 60, .decay_before = 60, .now = 0.9, .before = 0.75};
  EXPECT_EQ(moved_rate_text(moved, 20, 1000, before, before),
            "warning: the run is now 1000 steps long, was 60, which moves the learning rate: "
            "9.000e-01 in step 21, 7.500e-01 on the curve of before, which schedule.decay_steps = "
            "60 keeps");
  const deck::Deck now = deck_of(
      "schedule.kind = \"linear\"\nschedule.warmup_steps = 4\n"
      "run.seed = 7\n");
  EXPECT_EQ(moved_rate_text(moved, 20, 1, before, now),
            "warning: the run is now 1 step long, was 60; schedule.kind = \"linear\", was "
            "\"cosine\"; schedule.warmup_steps = 4, was 2: together they move the learning rate: "
            "9.000e-01 in step 21, 7.500e-01 on the curve of before");
}

TEST(StepLine, FitsAHundredColumnsAndLeavesOutWhatIsEmpty) {
  StepLine line{.step = 12,
                .steps = 600,
                .loss = 3.2145671,
                .grad_norm = 0.31214,
                .lr = 5.8e-4,
                .seconds = 0.8124,
                .tokens_per_s = 78912,
                .shares = {{{"comm", 0.061}, {"io", 0.2}, {"data", 0.009}, {"between", 0}}},
                .elapsed = 9,
                .left = 5820};
  const std::string begin = "step 12/600 | loss 3.2146 norm 0.312 lr 5.8e-04 | 812 ms";
  EXPECT_EQ(to_text(line), begin + " 78.9k tok/s io 20% comm 6% | 9s, ETA 1h37m");
  line.shares = {};
  line.gemm_share = 0.76;
  EXPECT_EQ(to_text(line), begin + " GEMM 76% 78.9k tok/s | 9s, ETA 1h37m");
  line.gemm_share = 0;
  line.seconds = 0.09996;
  EXPECT_NE(to_text(line).find("| 100 ms "), std::string::npos) << to_text(line);
  line.seconds = 9.9996;
  EXPECT_NE(to_text(line).find("| 10.0 s "), std::string::npos) << to_text(line);
  line.seconds = 0.8124;
  line.mfu = 0.412;
  line.left.reset();
  EXPECT_EQ(to_text(line), begin + " MFU 41% 78.9k tok/s | 9s");
  line = {.step = 999999,
          .steps = 1000000,
          .loss = 10.82634,
          .grad_norm = 1.234e-5,
          .lr = 5.8e-4,
          .seconds = 1012.3,
          .tokens_per_s = 789.1e3,
          .mfu = 0.412,
          .shares = {{{"comm", 0.061}, {"io", 0.02}, {"data", 0}, {"between", 0.03}}},
          .elapsed = 284400,
          .left = 5820};
  EXPECT_EQ(to_text(line),
            "step 999999/1000000 | loss 10.826 norm 1.23e-05 lr 5.8e-04 | 1012.3 s MFU 41% | "
            "3d07h, ETA 1h37m");
  EXPECT_LE(to_text(line).size(), 100U);
}

class LineFileTest : public testing::Test {
 protected:
  /// What a file with `before` holds once "new" was appended.
  std::string appended(std::string_view before) {
    test::write_file(directory_ / "log", before);
    LineFile(directory_ / "log").write("new");
    return test::read_file(directory_ / "log");
  }
  test::TemporaryDirectory directory_;
};

TEST_F(LineFileTest, Appends) {
  EXPECT_EQ(appended(""), "new\n");
  EXPECT_EQ(appended("one\ntwo\n"), "one\ntwo\nnew\n");
  EXPECT_EQ(appended("\n"), "\nnew\n");
}

// A killed run leaves part of a line; what follows must not be glued to it.
TEST_F(LineFileTest, CutsAnIncompleteLastLine) {
  EXPECT_EQ(appended("one\n{\"loss\":1."), "one\nnew\n");
  EXPECT_EQ(appended("never ended"), "new\n");
  for (std::size_t n : {4095, 4096, 4097, 10'000}) {  // longer than what is looked at in one go
    EXPECT_EQ(appended("one\n" + std::string(n, 'x')), "one\nnew\n") << n;
    EXPECT_EQ(appended(std::string(n, 'x')), "new\n") << n;
    EXPECT_EQ(appended(std::string(n, 'x') + "\ny"), std::string(n, 'x') + "\nnew\n") << n;
  }
}

TEST_F(LineFileTest, SaysWhichFileCannotBeOpened) {
  const std::string message =
      test::message_of<IoError>([&] { LineFile(directory_ / "missing/log"); });
  EXPECT_NE(message.find("missing/log"), std::string::npos) << message;
}

TEST(Reporter, WritesObjectsInFullPrecision) {  // trap 58
  const test::TemporaryDirectory directory;
  Reporter(directory.path()).event({{"event", "step"}, {"loss", 0.1}, {"lr", 1.0 / 3}});
  const std::string line = test::read_file(directory / "metrics.jsonl");
  EXPECT_TRUE(
      line.starts_with("{\"event\":\"step\",\"loss\":0.1,\"lr\":0.3333333333333333,\"time\":"))
      << line;
  EXPECT_TRUE(line.ends_with("}\n")) << line;
  Reporter silent;
  silent.event({{"event", "step"}});
  EXPECT_FALSE(silent);
}

}  // namespace
}  // namespace tessera::train
