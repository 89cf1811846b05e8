// Whatever happens to the files, before, during or after a save: damage is found, and what is
// listed as a checkpoint is one.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <set>
#include <thread>

#include "checkpoint_fixture.hpp"
#include "core/error.hpp"
#include "core/hash.hpp"
#include "io/checkpoint_reader.hpp"
#include "io/checkpoint_verify.hpp"
#include "io/system_calls.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace test;

std::vector<std::int64_t> steps(const fs::path& checkpoints) {
  std::vector<std::int64_t> all;
  for (const auto& entry : io::list_checkpoints(checkpoints)) all.push_back(entry.step);
  return all;
}
using Steps = std::vector<std::int64_t>;

/// Reads every tensor and compares.
void expect_holds(const fs::path& path, const TestModel& model) {
  auto checkpoint = io::Checkpoint::open(path);
  for (const TestTensor& t : model) {
    std::vector<std::byte> got(t.bytes.size());
    checkpoint.read(t.name, t.state, io::Box(t.shape), t.type, got);
    ASSERT_EQ(got, t.bytes);
  }
}

TEST(CheckpointDamage, EveryFlippedByteOfEveryFileIsFound) {
  Random random(31);
  TemporaryDirectory temporary;
  const auto model = random_model(random, false, DType::bf16);
  const auto path = save(random, temporary.path(), model, 2, {.step = 5});
  const auto manifest = io::read_manifest(path);
  for (const char* name : {"rank_00000.h5", "rank_00001.h5", "model.h5", "manifest.json"}) {
    const auto file = path / name;
    const auto size = static_cast<std::int64_t>(fs::file_size(file));
    for (int trial = 0; trial < 150; ++trial) {
      const auto at = trial == 0 ? 0 : trial == 1 ? size - 1 : random.below(size);
      flip_byte(file, at);
      if (std::string_view(name) == io::kManifestFile) {
        EXPECT_THROW(io::verify_checkpoint(path), DataError) << at;
        EXPECT_TRUE(io::list_checkpoints(temporary.path()).empty());
      } else {
        const auto bad = io::verify_checkpoint(path);
        ASSERT_EQ(bad.size(), 1U) << name << " " << at;
        EXPECT_EQ(bad[0].file, name);
        EXPECT_LE(bad[0].offset, at);
        EXPECT_GT(bad[0].offset + bad[0].bytes, at);
      }
      flip_byte(file, at);
    }
  }
  EXPECT_TRUE(io::verify_checkpoint(path).empty());
}

TEST(CheckpointDamage, ReadingADamagedBlockThrowsAndTheOthersStayReadable) {
  Random random(32);
  TemporaryDirectory temporary;
  const auto model = random_model(random, false);
  const auto path = save(random, temporary.path(), model, 3, {.step = 5});
  auto manifest = io::read_manifest(path);
  const io::RankPart& part = manifest.parts[1];
  const io::DatasetRecord& d = part.datasets[part.datasets.size() / 2];
  flip_byte(path / io::rank_file_name(1), d.offset + d.bytes() / 2);
  int damaged = 0;
  auto checkpoint = io::Checkpoint::open(path);
  for (const TestTensor& t : model) {
    std::vector<std::byte> got(t.bytes.size());
    try {
      checkpoint.read(t.name, t.state, io::Box(t.shape), t.type, got);
      EXPECT_EQ(got, t.bytes);
    } catch (const DataError& error) {
      ++damaged;
      EXPECT_EQ(t.state + "/" + t.name, d.name());
      EXPECT_NE(std::string(error.what()).find("rank_00001.h5: " + d.name()), std::string::npos);
    }
  }
  EXPECT_EQ(damaged, 1);
}

TEST(CheckpointDamage, TruncatedAndMissingFilesAreFound) {
  Random random(33);
  TemporaryDirectory temporary;
  const auto good = save(random, temporary.path(), random_model(random, false), 2, {.step = 5});
  const auto copy = io::checkpoint_path(temporary.path(), 6);
  for (const char* name : {"rank_00000.h5", "rank_00001.h5", "model.h5", "manifest.json"}) {
    const auto size = static_cast<std::int64_t>(fs::file_size(good / name));
    for (const std::int64_t left : {std::int64_t{-1}, std::int64_t{0}, size / 2, size - 1}) {
      const auto path = temporary.path() / "damaged" / "step_00000005";
      fs::create_directories(path.parent_path());
      fs::copy(good, path);
      left < 0 ? void(fs::remove(path / name))
               : fs::resize_file(path / name, static_cast<std::uintmax_t>(left));
      EXPECT_THROW(io::Checkpoint::open(path).check_files(), DataError) << name << " " << left;
      EXPECT_TRUE(io::list_checkpoints(path.parent_path()).empty());
      if (std::string_view(name) == io::kManifestFile) {
        EXPECT_THROW(io::verify_checkpoint(path), DataError);
      } else {
        const auto bad = io::verify_checkpoint(path);
        ASSERT_EQ(bad.size(), 1U);
        EXPECT_EQ(bad[0].file, name);
      }
      fs::remove_all(path);
    }
  }
  fs::copy(good, copy);  // under a name that does not fit its manifest: step 5 is not step 6
  EXPECT_EQ(steps(temporary.path()), Steps{5});
}

TEST(CheckpointCrash, AtAnyPointLeavesThePreviousOneNewest) {  // trap 48
  Random random(34);
  TemporaryDirectory temporary;
  const auto& checkpoints = temporary.path();
  const auto model = random_model(random, false);
  const auto previous = save(random, checkpoints, model, 2, {.step = 10});
  const auto expect_previous = [&] {
    EXPECT_EQ(steps(checkpoints), Steps{10});
    expect_holds(previous, model);
  };

  // A save of step 20, looked at after each of its operations.
  const auto directory = io::begin_checkpoint(checkpoints, 20);
  expect_previous();
  const auto shards = random_shards(random, model, 2);
  std::vector<io::RankPart> parts;
  for (int rank = 0; rank < 2; ++rank) {
    {
      io::CheckpointWriter unfinished(directory, rank,
                                      shards[static_cast<std::size_t>(rank)].pieces);
      unfinished.write(0, shards[static_cast<std::size_t>(rank)].bytes[0]);
    }
    expect_previous();
    parts.push_back(write_shard(random, directory, rank, shards[static_cast<std::size_t>(rank)]));
    expect_previous();
  }
  io::write_model_file(directory / io::kModelFile, parts);
  expect_previous();
  const auto committed = io::commit_checkpoint(directory, {.step = 20}, parts);
  EXPECT_EQ(steps(checkpoints), (Steps{20, 10}));

  // The instants inside commit: all but the rename done; the manifest only in part.
  const auto temporary_name = fs::path(committed.string() + ".tmp");
  fs::rename(committed, temporary_name);
  expect_previous();
  const auto manifest = slurp(temporary_name / io::kManifestFile);
  for (std::size_t cut = 0; cut < manifest.size(); cut += 1 + manifest.size() / 50) {
    spit(temporary_name / io::kManifestFile, manifest.substr(0, cut));
    expect_previous();
    // The same under the final name, as a disk that lost the last writes would show it.
    fs::rename(temporary_name, committed);
    expect_previous();
    fs::rename(committed, temporary_name);
  }
  // The next save removes what is left and succeeds.
  save(random, checkpoints, model, 3, {.step = 30});
  EXPECT_FALSE(fs::exists(temporary_name));
  EXPECT_EQ(steps(checkpoints), (Steps{30, 10}));
}

TEST(CheckpointCrash, AKilledSaverNeverLeavesAHalfCheckpoint) {  // trap 48
  Random random(35);
  TemporaryDirectory temporary;
  const auto model = random_model(random, false);
  const auto begin = std::chrono::steady_clock::now();
  save(random, temporary.path(), model, 2, {.step = 1});
  const std::chrono::microseconds one_save =
      duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);
  std::int64_t newest = 1;
  for (int trial = 0; trial < 40; ++trial) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (std::int64_t step = newest + 1;; ++step) {
        save(random, temporary.path(), model, 2, {.step = step});
        io::prune_checkpoints(temporary.path(), 2, 0, kLaterUpdates);
      }
    }
    std::this_thread::sleep_for(one_save * random.below(3000) / 1000);
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const auto entries = io::list_checkpoints(temporary.path());
    ASSERT_FALSE(entries.empty());
    ASSERT_GE(entries[0].step, newest);
    ASSERT_TRUE(io::verify_checkpoint(entries[0].path).empty());
    expect_holds(entries[0].path, model);
    newest = entries[0].step;
  }
  EXPECT_GT(newest, 1);  // some saves did complete
}

TEST(CheckpointCommit, ASavedStepCanBeSavedAgain) {
  Random random(36);
  TemporaryDirectory temporary;
  const auto before = random_model(random, false), after = random_model(random, false);
  save(random, temporary.path(), before, 2, {.step = 7});
  const auto path = save(random, temporary.path(), after, 3, {.step = 7});
  expect_holds(path, after);
  io::clean_up_checkpoints(temporary.path());
  EXPECT_EQ(std::distance(fs::directory_iterator(temporary.path()), {}), 1);
}

TEST(CheckpointCommit, RefusesPartsThatAreNotAWhole) {  // trap 47
  Random random(37);
  TemporaryDirectory temporary;
  const auto model = random_model(random, false);
  const auto directory = io::begin_checkpoint(temporary.path(), 1);
  const auto shards = random_shards(random, model, 2);
  std::vector<io::RankPart> good;
  for (int rank = 0; rank < 2; ++rank)
    good.push_back(write_shard(random, directory, rank, shards[static_cast<std::size_t>(rank)]));

  const auto expect_refused = [&](const std::vector<io::RankPart>& parts, const std::string& says) {
    try {
      io::commit_checkpoint(directory, {.step = 1}, parts);
      ADD_FAILURE() << "accepted";
    } catch (const InternalError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
    EXPECT_TRUE(io::list_checkpoints(temporary.path()).empty());
  };
  expect_refused({}, "no tensors");
  expect_refused({good[1]}, "rank 1's part where rank 0's should be");
  expect_refused({good[0], good[0]}, "rank 0's part where rank 1's should be");
  auto parts = good;
  parts[0].datasets.erase(parts[0].datasets.begin());
  expect_refused(parts, "is held 0 times");
  parts = good;
  parts[1].datasets[0].shape = io::Shape{100, 100, 100};
  expect_refused(parts, "elsewhere");
  parts = good;
  parts[1].datasets[0].tensor = "a/b";
  expect_refused(parts, "names may have letters");
  parts = good;
  parts[1].datasets[0].checksums.push_back(0);
  expect_refused(parts, "checksums for");
  parts = good;
  parts[1].datasets.back().offset = parts[1].file_bytes;
  expect_refused(parts, "overlap the dataset before or pass the file's end");
  parts = good;
  parts[1].datasets[0].boxes[0].start[3] += 1000;
  expect_refused(parts, "is outside shape");

  fs::rename(directory / "rank_00001.h5", directory / "elsewhere");  // on another node's disk
  EXPECT_THROW(io::commit_checkpoint(directory, {.step = 1}, good), DataError);
  fs::rename(directory / "elsewhere", directory / "rank_00001.h5");
  expect_holds(io::commit_checkpoint(directory, {.step = 1}, good), model);
}

/// A file system of a few megabytes over a directory; needs the right to mount.
class SmallFileSystem {
 public:
  explicit SmallFileSystem(fs::path path) : path_(std::move(path)) {
    error = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=16m") == 0 ? 0 : errno;
  }
  SmallFileSystem(const SmallFileSystem&) = delete;
  ~SmallFileSystem() {
    if (error == 0) ::umount2(path_.c_str(), MNT_DETACH);
  }
  int error;

 private:
  fs::path path_;
};

TEST(CheckpointWriterErrors, AFullDiskIsAnIoErrorAndThePreviousStays) {  // trap 59
  TemporaryDirectory temporary;
  const SmallFileSystem disk(temporary.path());
  if (disk.error != 0) GTEST_SKIP() << "cannot mount a small tmpfs: " << errno_text(disk.error);
  Random random(38);
  const auto model = random_model(random, false);
  const auto previous = save(random, temporary.path(), model, 2, {.step = 1});
  const auto directory = io::begin_checkpoint(temporary.path(), 2);
  {
    const io::Shape shape{6, 1 << 20};
    io::CheckpointWriter writer(
        directory, 0, std::vector<io::Piece>{{"w", shape, "master", DType::f32, io::Box(shape)}});
    const auto bytes = random.bytes(6 << 22);
    try {
      writer.write(0, bytes);
      ADD_FAILURE() << "24 MiB fit on 16 MiB";
    } catch (const IoError& error) {
      const std::string text = error.what();
      for (const std::string& part :
           {std::string("rank_00000.h5"), std::string("master/w"),
            fmt::format("{} bytes at byte", io::kBlockBytes), std::string("No space")})
        EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
  EXPECT_EQ(steps(temporary.path()), Steps{1});
  expect_holds(previous, model);
  save(random, temporary.path(), model, 2, {.step = 3});  // removing the partial one makes room
  EXPECT_EQ(steps(temporary.path()), (Steps{3, 1}));
}

TEST(CheckpointWriterErrors, HDF5sOwnFailuresSayWhy) {
  TemporaryDirectory temporary;
  try {
    io::CheckpointWriter(temporary.path() / "nowhere", 0, {});
    ADD_FAILURE() << "created a file in no directory";
  } catch (const IoError& error) {
    const std::string text = error.what();
    for (const char* part : {"H5Fcreate", "nowhere/rank_00000.h5", "No such file"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(CheckpointPrune, KeepsTheNewestAndTheMilestones) {
  Random random(39);
  TemporaryDirectory temporary;
  const TestModel model = {{"w", "master", {3}, DType::f32, random.numbers(DType::f32, 3)}};
  const auto save_steps = [&](const Steps& wanted) {
    fs::remove_all(temporary.path());
    for (const auto step : wanted) save(random, temporary.path(), model, 1, {.step = step});
  };
  const Steps all = {100, 200, 300, 400, 500};
  save_steps(all);
  EXPECT_TRUE(io::prune_checkpoints(temporary.path(), 0, 200, kLaterUpdates).empty());
  EXPECT_EQ(steps(temporary.path()).size(), 5U);
  EXPECT_EQ(io::prune_checkpoints(temporary.path(), 2, 200, kLaterUpdates).size(), 2U);
  EXPECT_EQ(steps(temporary.path()), (Steps{500, 400, 200}));
  EXPECT_EQ(io::prune_checkpoints(temporary.path(), 2, 0, kLaterUpdates).size(), 1U);
  EXPECT_EQ(steps(temporary.path()), (Steps{500, 400}));

  save_steps(all);
  flip_byte(io::checkpoint_path(temporary.path(), 500) / io::kManifestFile, 100);
  io::prune_checkpoints(temporary.path(), 1, 0,
                        kLaterUpdates);  // what is damaged does not count as the newest
  EXPECT_EQ(steps(temporary.path()), Steps{400});

  save_steps(all);
  std::set<std::string> opened;
  io::set_io_hook([&](IoCall call, const fs::path& path, std::size_t) {
    if (call == IoCall::open) opened.insert(path.filename());
    return io::IoVerdict{};
  });
  io::prune_checkpoints(temporary.path(), 2, 0, kLaterUpdates);
  io::set_io_hook({});
  opened.erase(temporary.path().filename());  // to be synced
  EXPECT_EQ(opened, std::set<std::string>{io::kManifestFile})
      << "a call a file of every checkpoint";
  spit(temporary.path() / "step_notes.txt", "a stranger's file");
  fs::create_directories(temporary.path() / "step_12");  // not our spelling
  EXPECT_EQ(steps(temporary.path()), (Steps{500, 400}));
  EXPECT_TRUE(io::list_checkpoints(temporary.path() / "nowhere").empty());
}

TEST(CheckpointPrune, NeverRemovesTheNewestThatALaterStepProved) {
  Random random(41);
  TemporaryDirectory temporary;
  const TestModel model = {{"w", "master", {3}, DType::f32, random.numbers(DType::f32, 3)}};
  const auto save_after = [&](std::int64_t step, std::int64_t applied) {
    save(random, temporary.path(), model, 1, {.step = step, .applied_updates = applied});
  };
  save_after(10, 10);
  save_after(20, 20);
  for (const std::int64_t step : {30, 40, 50}) save_after(step, 21);  // nothing but skips since 21
  io::prune_checkpoints(temporary.path(), 2, 0, 21);
  EXPECT_EQ(steps(temporary.path()), (Steps{50, 40, 20}));
  io::prune_checkpoints(temporary.path(), 1, 0, 21);
  EXPECT_EQ(steps(temporary.path()), (Steps{50, 20}));
  EXPECT_EQ(io::proven_checkpoints(temporary.path(), 21).at(0).step, 20);
  EXPECT_TRUE(io::proven_checkpoints(temporary.path(), 20).empty());
  io::prune_checkpoints(temporary.path(), 1, 0, 22);  // a step after the newest was applied
  EXPECT_EQ(steps(temporary.path()), Steps{50});
}

TEST(CheckpointPrune, LeavesWhatSomebodyReads) {
  Random random(42);
  TemporaryDirectory temporary;
  const auto model = random_model(random, false);
  for (const std::int64_t step : {1, 2, 3})
    save(random, temporary.path(), model, 2, {.step = step});
  {
    const io::Checkpoint reader = io::Checkpoint::open(io::checkpoint_path(temporary.path(), 1));
    EXPECT_EQ(io::prune_checkpoints(temporary.path(), 1, 0, kLaterUpdates).size(), 1U);
    EXPECT_EQ(steps(temporary.path()), (Steps{3, 1}));
    const io::Checkpoint another = io::Checkpoint::open(io::checkpoint_path(temporary.path(), 1));
    reader.check_files();
  }
  EXPECT_EQ(io::prune_checkpoints(temporary.path(), 1, 0, kLaterUpdates).size(), 1U);
  EXPECT_EQ(steps(temporary.path()), Steps{3});
  EXPECT_THROW(io::Checkpoint::open(io::checkpoint_path(temporary.path(), 1)), DataError);
}

/// Pruned between the reader's open() and its lock: the lock is had, but of a file without a name.
TEST(CheckpointPrune, AReaderThatComesTooLateIsTold) {
  Random random(43);
  TemporaryDirectory temporary;
  const auto model = random_model(random, false);
  for (const std::int64_t step : {1, 2}) save(random, temporary.path(), model, 1, {.step = step});
  bool pruned = false;
  io::set_io_hook([&](IoCall call, const fs::path&, std::size_t) {
    if (call == IoCall::lock && !std::exchange(pruned, true))
      io::prune_checkpoints(temporary.path(), 1, 0, kLaterUpdates);
    return io::IoVerdict{};
  });
  EXPECT_THROW(io::CheckpointHold(io::checkpoint_path(temporary.path(), 1)), DataError);
  io::set_io_hook({});
  EXPECT_TRUE(pruned);
  EXPECT_EQ(steps(temporary.path()), Steps{2});
}

/// All that a reader has listed are pruned before it reads their manifests.
TEST(CheckpointPrune, AReaderFindsWhatCameWhileItLooked) {
  Random random(44);
  TemporaryDirectory temporary;
  const auto model = random_model(random, false);
  EXPECT_FALSE(io::hold_newest(temporary.path()));
  save(random, temporary.path(), model, 1, {.step = 1});
  std::int64_t newest = 1;
  bool saving = false;
  io::set_io_hook([&](IoCall call, const fs::path& path, std::size_t) {
    if (call == IoCall::open && path.filename() == io::kManifestFile && !saving && newest < 4) {
      saving = true;
      save(random, temporary.path(), model, 1, {.step = ++newest});
      io::prune_checkpoints(temporary.path(), 1, 0, kLaterUpdates);
      saving = false;
    }
    return io::IoVerdict{};
  });
  const auto held = io::hold_newest(temporary.path());
  io::set_io_hook({});
  ASSERT_TRUE(held);
  EXPECT_EQ(held->path, io::checkpoint_path(temporary.path(), 4));
}

TEST(CheckpointBranch, LaterCheckpointsAreSetAsideNotTakenForThisRuns) {
  Random random(40);
  TemporaryDirectory temporary;
  const auto model = random_model(random, false);
  for (int branch = 0; branch < 2; ++branch) {
    for (const std::int64_t step : {2, 4, 6})
      save(random, temporary.path(), model, 1, {.step = step});
    EXPECT_EQ(io::set_aside_after(temporary.path(), 2).size(),
              branch == 0 ? 2U : 3U);  // step 3 too
    ASSERT_EQ(io::list_checkpoints(temporary.path()).size(), 1U);
    save(random, temporary.path(), model, 1, {.step = 3});
    io::prune_checkpoints(temporary.path(), 1, 0, kLaterUpdates);
    EXPECT_EQ(io::list_checkpoints(temporary.path()).at(0).step, 3);
  }
  EXPECT_TRUE(fs::exists(temporary.path() / "step_00000004.abandoned"));  // nothing is lost
  EXPECT_TRUE(fs::exists(temporary.path() / "step_00000004.abandoned2"));
}

}  // namespace
}  // namespace tessera
