// What a run keeps beside its checkpoints, on a disk that loses power after every single call.
#include <gtest/gtest.h>

#include "deck/load.hpp"
#include "support/crash_disk.hpp"
#include "support/temporary_directory.hpp"
#include "train/report/resolved.hpp"
#include "train/report/run_directory.hpp"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

std::string read_or_empty(const fs::path& path) {
  return fs::exists(path) ? test::read_file(path) : "";
}

TEST(Crash, LeavesAFileOfLinesWithWholeLinesAndAllThatWereSynced) {
  const test::FastDirectory directory;
  test::write_file(directory / "lines", "old\n" + std::string(3000, '-'));  // never ended
  test::CrashDisk disk(directory.path());
  std::string text = "old\n", synced = text;
  std::vector<std::string> states{text};  // after each line
  std::size_t changes_then = 0;
  LineFile file(directory / "lines");
  for (int i = 0; i < 12; ++i) {
    const std::string line(static_cast<std::size_t>(i * 211 % 1500), static_cast<char>('a' + i));
    file.write(line);
    states.push_back(text += line + "\n");
    if (i % 5 == 4) file.sync(), synced = text, changes_then = disk.changes();
  }
  disk.stop();
  disk.each_crash(20, 1, [&](std::size_t changes, const fs::path& root) {
    SCOPED_TRACE(disk.describe(changes));
    { const LineFile reopened(root / "lines"); }
    const std::string found = test::read_file(root / "lines");
    EXPECT_TRUE(std::find(states.begin(), states.end(), found) != states.end()) << found;
    if (changes >= changes_then) {
      EXPECT_TRUE(found.starts_with(synced)) << found;
    }
  });
}

TEST(Crash, LosesNothingThatAReporterHasSynced) {
  const test::FastDirectory directory;
  test::CrashDisk disk(directory.path());
  const fs::path run = directory / "runs" / "one";
  const RunLock lock(run);
  Reporter report(run);
  report.record("a sentence", {{"event", "step"}, {"step", 1}});
  report.sync();
  const std::size_t synced = disk.changes();
  report.record("another", {{"event", "step"}, {"step", 2}});
  disk.stop();
  disk.each_crash(
      10, 2,
      [&](std::size_t changes, const fs::path& root) {
        SCOPED_TRACE(disk.describe(changes));
        Reporter again(root / "runs" / "one");
        const auto of = [&](const char* name) {
          return test::read_file(root / "runs" / "one" / name);
        };
        EXPECT_EQ(of("log.txt").find("Z a sentence\n"),
                  std::size(std::string_view("2026-03-01 04:05:06")));
        EXPECT_TRUE(of("metrics.jsonl").starts_with("{\"event\":\"step\",\"step\":1,\"time\":"));
        EXPECT_NE(of("logbook.md").find("a sentence\n"), std::string::npos);
        EXPECT_GE(again.last_step(), 1);
      },
      synced);
}

// A batch job asks this file whether to start the run again.
TEST(Crash, LeavesWhyARunHasEndedWholeAndRemovesItForGood) {
  const test::FastDirectory directory;
  test::CrashDisk disk(directory.path());
  write_ended(directory.path(), ExitCode::non_finite, "the gradient is not finite");
  const std::size_t written = disk.changes();
  remove_ended(directory.path());
  disk.stop();
  disk.each_crash(10, 3, [&](std::size_t changes, const fs::path& root) {
    SCOPED_TRACE(disk.describe(changes));
    const std::string found = read_or_empty(root / "ended"),
                      whole = "6 the gradient is not finite\n";
    EXPECT_TRUE(found.empty() || found == whole) << found;
    EXPECT_TRUE(changes != written || found == whole) << "reported as written, and lost";
    EXPECT_TRUE(changes != disk.changes() || found.empty()) << "removed, and back";
  });
}

// The next start compares its deck with this one, whenever the job before was killed.
TEST(Crash, LeavesAResolvedDeckAtEveryMoment) {
  const test::FastDirectory directory;
  const auto deck_of = [](int steps) {
    return deck::parse_deck(fmt::format("run.steps = {}\nmodel.family = \"gpt2\"\n"
                                        "model.preset = \"gpt2_124m\"\ndata.train = [\"none\"]\n"
                                        "batch.global = 1\noptimizer.lr = 1.0\n",
                                        steps),
                            "deck.toml")
        .deck;
  };
  const std::string first = to_toml(deck_of(1)), second = to_toml(deck_of(2));
  write_resolved(deck_of(1), directory.path());
  test::CrashDisk disk(directory.path());
  write_resolved(deck_of(2), directory.path());
  disk.stop();
  disk.each_crash(10, 4, [&](std::size_t changes, const fs::path& root) {
    SCOPED_TRACE(disk.describe(changes));
    const std::string found = read_or_empty(root / "resolved.toml");
    EXPECT_TRUE(found == first || found == second) << found;
    EXPECT_TRUE(found == first || read_or_empty(root / "resolved.1.toml") == first);
    write_resolved(deck_of(2), root);  // the next start
    EXPECT_EQ(read_or_empty(root / "resolved.toml"), second);
    EXPECT_EQ(read_or_empty(root / "resolved.1.toml"), first);
    EXPECT_FALSE(fs::exists(root / "resolved.2.toml")) << "kept twice";
  });
}

}  // namespace
}  // namespace tessera::train
