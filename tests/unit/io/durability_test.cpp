// What io/ has reported as done outlives a crash of the whole system, and what it was at is found
// whole or not at all: the disk loses power after every single call, and whatever was not synced by
// then is dropped, reordered or torn (trap 48).
#include <gtest/gtest.h>

#include <cerrno>

#include "checkpoint_fixture.hpp"
#include "core/error.hpp"
#include "io/chat_template.hpp"
#include "io/checkpoint_reader.hpp"
#include "io/checkpoint_verify.hpp"
#include "io/file.hpp"
#include "io/hugging_face.hpp"
#include "io/megatron.hpp"
#include "io/system_calls.hpp"
#include "io/token_files.hpp"
#include "io/token_pairs.hpp"
#include "io/tokenize.hpp"
#include "io/tokenizer_files.hpp"
#include "support/crash_disk.hpp"
#include "support/tokenizing.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace test;

TestModel small_model(unsigned seed) {
  Random random(seed);
  TestModel model;
  for (const char* state : {"master", "adam_m"}) {
    for (const auto& [name, shape] :
         {std::pair<const char*, io::Shape>{"vocabulary.weight", {37, 41}},
          {"block.0.norm.bias", {9}}})
      model.push_back(
          {name, state, shape, DType::f32, random.numbers(DType::f32, shape.elements())});
  }
  return model;
}

bool holds(const fs::path& path, const TestModel& model) {
  auto checkpoint = io::Checkpoint::open(path);
  return std::all_of(model.begin(), model.end(), [&](const TestTensor& t) {
    std::vector<std::byte> got(t.bytes.size());
    checkpoint.read(t.name, t.state, io::Box(t.shape), t.type, got);
    return got == t.bytes;
  });
}

/// Where a save is: checkpoint `step` of `checkpoints`.
struct SaveCase {
  const char* name;
  std::int64_t step;  // 10 and 20 are there already
  bool can_exchange;  // of the file system
  friend void PrintTo(const SaveCase& c, std::ostream* to) { *to << c.name; }
};

class Crash : public testing::TestWithParam<SaveCase> {
 protected:
  Crash() {
    fs::create_directory(run_);
    Random random(1);
    for (const std::int64_t step : {10, 20}) save(random, checkpoints_, old_, 2, {.step = step});
  }
  ~Crash() override { io::set_io_hook({}); }

  void save_and_prune(const fs::path& run, std::int64_t step) {
    Random random(2);
    io::set_io_hook([](IoCall call, const fs::path&, std::size_t) {
      const bool refused = call == IoCall::exchange && !GetParam().can_exchange;
      return io::IoVerdict{.error = refused ? EINVAL : 0};
    });
    save(random, run / "checkpoints", new_, 2, {.step = step});
    io::set_io_hook({});
    if (disk_) committed_ = disk_->changes();
    io::prune_checkpoints(run / "checkpoints", 2, 0, kLaterUpdates);
  }

  /// What has a checkpoint's name and manifest is one, with all of its bytes; and what was
  /// committed is there: the new one from then on, the old ones until they may be pruned.
  void expect_kept(const fs::path& run, std::size_t changes) {
    const fs::path checkpoints = run / "checkpoints";
    std::map<std::int64_t, bool> is_new;
    for (const auto& [step, path] : io::committed_checkpoints(checkpoints)) {
      EXPECT_TRUE(io::verify_checkpoint(path).empty()) << path;
      is_new[step] = holds(path, new_);
      EXPECT_TRUE(is_new[step] || holds(path, old_)) << path;
    }
    const std::int64_t step = GetParam().step;
    EXPECT_TRUE(is_new.contains(20));
    EXPECT_TRUE(is_new.contains(10) || changes > committed_);
    if (changes < committed_) return;
    EXPECT_TRUE(is_new.contains(step) && is_new[step]) << "reported as committed, and lost";
  }

  FastDirectory temporary_;
  fs::path run_ = temporary_ / "run", checkpoints_ = run_ / "checkpoints";
  TestModel old_ = small_model(3), new_ = small_model(4);
  std::unique_ptr<CrashDisk> disk_;  // while it records
  std::size_t committed_ = 0;        // changes by then
};

TEST_P(Crash, LosesNoCommittedCheckpoint) {
  disk_ = std::make_unique<CrashDisk>(run_);
  save_and_prune(run_, GetParam().step);
  disk_->stop();
  const auto recorded = std::exchange(disk_, {});
  EXPECT_GT(recorded->changes(), 30U);
  recorded->each_crash(12, 5, [&](std::size_t changes, const fs::path& run) {
    if (HasFailure()) return;
    SCOPED_TRACE(recorded->describe(changes));
    io::clean_up_checkpoints(run / "checkpoints");
    expect_kept(run, changes);
    const std::size_t committed = committed_;
    save_and_prune(run, 40);
    committed_ = committed;
    EXPECT_EQ(std::distance(fs::directory_iterator(run / "checkpoints"), {}), 2) << "left-overs";
    EXPECT_TRUE(holds(io::checkpoint_path(run / "checkpoints", 40), new_));
  });
}

// The crash after a crash, in the very start that recovers from the first.
TEST_P(Crash, InTheRecoveryLosesNoneEither) {
  disk_ = std::make_unique<CrashDisk>(run_);
  save_and_prune(run_, GetParam().step);
  disk_->stop();
  const auto recorded = std::exchange(disk_, {});
  recorded->each_crash(1, 6, [&](std::size_t changes, const fs::path& run) {
    if (HasFailure()) return;
    CrashDisk recovery(run);
    io::clean_up_checkpoints(run / "checkpoints");
    recovery.stop();
    recovery.each_crash(2, changes, [&](std::size_t later, const fs::path& again) {
      SCOPED_TRACE(recorded->describe(changes) + "; then " + recovery.describe(later));
      io::clean_up_checkpoints(again / "checkpoints");
      expect_kept(again, changes);
    });
  });
}

// A step after the newest; and the newest anew, where names can be exchanged and where not.
INSTANTIATE_TEST_SUITE_P(Of, Crash,
                         testing::Values(SaveCase{"AFollowingStep", 30, true},
                                         SaveCase{"AStepAnew", 20, true},
                                         SaveCase{"AStepAnewByRenaming", 20, false}),
                         [](const auto& save_case) { return std::string(save_case.param.name); });

// Each rank's own: what rank 0 syncs later it need not have seen, where nodes share a file system.
TEST(Crash, LosesNoFileThatARankHasFinished) {
  const FastDirectory temporary;
  const TestModel model = small_model(16);
  CrashDisk disk(temporary.path());
  std::vector<io::Piece> pieces;
  for (const TestTensor& t : model)
    pieces.push_back({t.name, t.shape, t.state, t.type, io::Box(t.shape)});
  io::CheckpointWriter writer(temporary.path(), 3, pieces);
  for (std::size_t i = 0; i < model.size(); ++i) writer.write(i, model[i].bytes);
  writer.finish();
  disk.stop();
  const FileTree whole = read_tree(temporary.path());
  EXPECT_EQ(whole.size(), 1U);
  disk.each_crash(
      8, 17, [&](std::size_t, const fs::path& root) { EXPECT_EQ(read_tree(root), whole); },
      disk.changes());
}

// Into a run directory that is made on the way, and its parents with it.
TEST(Crash, LosesNoFirstCheckpointWithItsDirectories) {
  const FastDirectory temporary;
  const TestModel model = small_model(5);
  CrashDisk disk(temporary.path());
  Random random(6);
  save(random, temporary.path() / "runs" / "first" / "checkpoints", model, 1, {.step = 5});
  disk.stop();
  disk.each_crash(
      8, 7,
      [&](std::size_t, const fs::path& root) {
        const auto found = io::list_checkpoints(root / "runs" / "first" / "checkpoints");
        ASSERT_EQ(found.size(), 1U);
        EXPECT_TRUE(holds(found[0].path, model));
      },
      disk.changes());
}

// Or else a restart would take them for this run's: they are another branch's, or corrupt.
TEST(Crash, BringsBackNoCheckpointThatWasSetAside) {
  const FastDirectory temporary;
  Random random(8);
  for (const std::int64_t step : {10, 20, 30})
    save(random, temporary.path(), small_model(9), 1, {.step = step});
  CrashDisk disk(temporary.path());
  io::set_aside_after(temporary.path(), 10);
  disk.stop();
  disk.each_crash(
      8, 10,
      [&](std::size_t, const fs::path& root) {
        const auto found = io::list_checkpoints(root);
        ASSERT_EQ(found.size(), 1U);
        EXPECT_EQ(found[0].step, 10);
        EXPECT_TRUE(fs::exists(root / "step_00000020.abandoned" / "manifest.json"));
      },
      disk.changes());
}

TEST(Crash, LeavesOfAnAtomicFileTheOldOneOrTheNew) {
  const FastDirectory temporary;
  std::string text = "new";
  for (int i = 0; i < 3000; ++i) text += std::to_string(i);
  for (const bool replaces : {false, true}) {
    const fs::path root = temporary.path() / (replaces ? "there" : "fresh");
    fs::create_directory(root);
    if (replaces) spit(root / "file", "old");
    CrashDisk disk(root);
    io::AtomicFile file(root / "file");
    file.append(text);
    file.publish();
    disk.stop();
    std::size_t old = 0, now = 0;
    disk.each_crash(64, 11, [&](std::size_t changes, const fs::path& after) {
      SCOPED_TRACE(disk.describe(changes));
      const bool there = fs::exists(after / "file");
      const std::string found = there ? slurp(after / "file") : "";
      if (found == text) {
        ++now;
      } else {
        ++old;
        EXPECT_EQ(there, replaces);
        EXPECT_EQ(found, replaces ? "old" : "");
        EXPECT_LT(changes, disk.changes()) << "published, and lost";
      }
    });
    EXPECT_GT(old, 3U);
    EXPECT_GT(now, 1U);
  }
}

TEST(Crash, BringsBackNothingThatWasRemovedDurably) {
  const FastDirectory temporary;
  spit(temporary.path() / "ended", "7");
  CrashDisk disk(temporary.path());
  io::remove_durably(temporary.path() / "ended");
  disk.stop();
  disk.each_crash(
      4, 12, [](std::size_t, const fs::path& root) { EXPECT_FALSE(fs::exists(root / "ended")); },
      disk.changes());
}

io::Tokenizer tokenizer_of(const char* name) {
  return io::Tokenizer::open(fs::path(TESSERA_SOURCE_DIR) / "tests/data/tokenizers" / name);
}

struct Tokenized {
  std::vector<std::int32_t> ids, labels;
  std::string tokenizer;
  std::vector<std::uint8_t> targets;
  std::optional<std::int64_t> pairs;
  bool operator==(const Tokenized&) const = default;
};

/// What a reader finds; nothing where there is no index.
std::optional<Tokenized> read_tokens(const fs::path& prefix) {
  if (!fs::exists(io::megatron_idx(prefix))) return std::nullopt;
  const std::vector<std::string> entries{prefix.string()};
  const fs::path beside = io::tokenizer_beside(prefix);
  const io::TokenCorpus corpus(entries, 1 << 20);
  Tokenized found{.ids = std::vector<std::int32_t>(static_cast<std::size_t>(corpus.tokens())),
                  .tokenizer = io::path_exists(beside) ? io::Tokenizer::open(beside).json() : "",
                  .pairs = io::pairs_of(corpus.files()[0])};
  corpus.read(0, found.ids);
  if (const auto names = io::label_names_of(corpus.files()[0]))
    found.labels = io::read_document_labels(corpus.files()[0], *names);
  if (corpus.has_targets()) {
    found.targets.resize(found.ids.size());
    corpus.read_targets(0, found.targets);
  }
  return found;
}

void tokenize(const fs::path& input, const fs::path& prefix, io::Tokenizer tokenizer) {
  tokenize_in_parts({input}, prefix, tokenizer, 2,
                    {.labels = io::LabelSource::member, .label_key = "label"});
}

/// After each crash what a reader finds is all of one, or nothing; the later one once it is
/// reported.
void expect_one_of(CrashDisk& disk, std::uint64_t seed, const std::optional<Tokenized>& old,
                   const std::optional<Tokenized>& now) {
  disk.each_crash(12, seed, [&](std::size_t changes, const fs::path& after) {
    if (testing::Test::HasFailure()) return;
    SCOPED_TRACE(disk.describe(changes));
    const auto found = read_tokens(after / "out");
    EXPECT_TRUE(!found || found == old || found == now);
    EXPECT_TRUE(changes < disk.changes() || found == now) << "reported as done, and lost";
  });
}

// Tokens of one text and tokenizer, made anew from others: they are never mixed.
TEST(Crash, LeavesTokensOfOneTextWithTheirTokenizerAndLabelsOrNone) {
  const FastDirectory temporary;
  const fs::path root = temporary.path() / "tokens";
  fs::create_directory(root);
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += fmt::format("{{\"text\": \"the quick brown fox {}\", \"label\": {}}}\n",
                         std::string(i, 'x'), i % 3);
  spit(temporary.path() / "old.jsonl", lines);
  spit(temporary.path() / "new.jsonl", lines + lines);
  tokenize(temporary.path() / "old.jsonl", root / "out", tokenizer_of("gpt2.json"));
  const auto old = read_tokens(root / "out");
  CrashDisk disk(root);
  tokenize(temporary.path() / "new.jsonl", root / "out", tokenizer_of("llama3.json"));
  disk.stop();
  const auto now = read_tokens(root / "out");
  expect_one_of(disk, 13, old, now);
}

// What is said of pairs lies beside the tokens in three more files.
TEST(Crash, LeavesPairsOfAnswersWithTheirTargetsOrNone) {
  const FastDirectory temporary;
  const fs::path root = temporary.path() / "tokens";
  fs::create_directory(root);
  const fs::path chat_file = temporary.path() / "chat.json";
  spit(chat_file,
       R"({"parts": [{"text": "{prompt}"}, {"text": "{completion}", "learned": true}]})");
  io::Tokenizer bytes = io::Tokenizer::bytes();
  auto chat = io::ChatTemplate::open(chat_file.string());
  chat.bind(bytes);
  const auto make = [&](const std::string& prompt, int count) {
    std::string lines;
    for (int i = 0; i < count; ++i)
      lines += fmt::format(R"({{"prompt": "{}", "chosen": "{}", "rejected": "no"}})"
                           "\n",
                           prompt, std::string(i + 1, 'y'));
    spit(temporary.path() / "pairs.jsonl", lines);
    tokenize_in_parts({temporary.path() / "pairs.jsonl"}, root / "out", bytes, 2,
                      {.chat = &chat, .pairs = true});
    return read_tokens(root / "out");
  };
  const auto old = make("a", 20);
  ASSERT_EQ(old->pairs, 20);
  ASSERT_EQ(old->targets.size(), old->ids.size());
  CrashDisk disk(root);
  const auto now = make("bcd", 30);
  disk.stop();
  expect_one_of(disk, 15, old, now);
}

TEST(Crash, LeavesAWholeExportOrNone) {
  const FastDirectory temporary;
  const auto model = io::HfModel::open(fs::path(TESSERA_SOURCE_DIR) / "tests/data/hf/gpt2");
  const io::Tokenizer tokenizer = tokenizer_of("gpt2.json");
  const fs::path root = temporary.path() / "exported";
  fs::create_directory(root);
  CrashDisk disk(root);
  io::export_hugging_face({.directory = root / "to" / "model",
                           .architecture = model.architecture(),
                           .tokenizer = &tokenizer,
                           .shard_bytes = 4000},
                          [&](std::string_view name, std::int64_t begin, std::span<float> out) {
                            model.read(name, begin, out);
                          });
  disk.stop();
  const FileTree want = read_tree(root / "to" / "model");
  EXPECT_GT(want.size(), 5U);
  disk.each_crash(8, 14, [&](std::size_t changes, const fs::path& after) {
    if (HasFailure()) return;
    SCOPED_TRACE(disk.describe(changes));
    if (fs::exists(after / "to" / "model")) {
      EXPECT_EQ(read_tree(after / "to" / "model"), want);
    } else {
      EXPECT_LT(changes, disk.changes()) << "reported as done, and lost";
    }
  });
}

// The disk itself: it forgets what it may, and no more.
TEST(CrashDisk, KeepsWhatWasSyncedAndAnyPartOfWhatWasNot) {
  const FastDirectory temporary;
  CrashDisk disk(temporary.path());
  {
    io::File file(temporary.path() / "file", io::OpenMode::create);
    file.write(0, std::as_bytes(std::span("aaaa", 4)));
    file.sync();  // its bytes, and not its name
    const std::size_t nameless = disk.changes();
    io::sync_directory(temporary.path());
    file.write(4096, std::as_bytes(std::span("b", 1)));
    file.write(0, std::as_bytes(std::span("c", 1)));
    io::rename_path(temporary.path() / "file", temporary.path() / "other");
    disk.stop();
    const std::vector<FileTree> unnamed = {{}, {{"file", "aaaa"}}};
    EXPECT_EQ(disk.after_crash(nameless, 64, 1), unnamed);
  }
  // Two names, three sizes, two sectors: a size of 4096 does not come about.
  std::set<std::string> names, bytes;
  for (const FileTree& tree : disk.after_crash(disk.changes(), 64, 1)) {
    ASSERT_EQ(tree.size(), 1U);
    names.insert(tree.begin()->first);
    bytes.insert(*tree.begin()->second);
  }
  const std::string zeros(4092, '\0'), zero(1, '\0');
  EXPECT_EQ(names, (std::set<std::string>{"file", "other"}));
  EXPECT_EQ(bytes,
            (std::set<std::string>{"aaaa", "caaa", "aaaa" + zeros + zero, "aaaa" + zeros + "b",
                                   "caaa" + zeros + zero, "caaa" + zeros + "b"}));
}

TEST(CrashDisk, OrdersChangesOfTheSameNameAndNoOthers) {
  const FastDirectory temporary;
  for (const char* name : {"a", "b"}) spit(temporary.path() / name, name);
  CrashDisk disk(temporary.path());
  io::rename_path(temporary.path() / "a", temporary.path() / "c");
  io::rename_path(temporary.path() / "c", temporary.path() / "d");
  io::remove_tree(temporary.path() / "b");
  disk.stop();
  std::set<std::string> left;
  for (const FileTree& tree : disk.after_crash(disk.changes(), 64, 1)) {
    std::string names;
    for (const auto& [path, bytes] : tree) names += path;
    left.insert(names);
  }
  EXPECT_EQ(left, (std::set<std::string>{"ab", "bc", "bd", "a", "c", "d"}));
}

TEST(CrashDisk, FindsWhatWasWrittenByOtherMeans) {
  const FastDirectory temporary;
  CrashDisk disk(temporary.path());
  spit(temporary.path() / "stranger", "x");
  EXPECT_THROW(disk.stop(), InternalError);
}

}  // namespace
}  // namespace tessera
