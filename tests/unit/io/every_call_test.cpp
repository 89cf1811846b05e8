// Every call of the operating system's fails once: the n-th, for every n that there is. Whatever
// call it is, the work succeeds with the right bytes or ends in an error that names a file, and
// leaves nothing that the next start or the next save stumbles over (traps 48, 59).
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cerrno>

#include "checkpoint_fixture.hpp"
#include "core/error.hpp"
#include "io/checkpoint_reader.hpp"
#include "io/checkpoint_verify.hpp"
#include "io/megatron.hpp"
#include "io/system_calls.hpp"
#include "io/token_files.hpp"
#include "io/tokenize.hpp"
#include "io/tokenizer_files.hpp"
#include "support/tokenizing.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace test;

/// Thousands of files are synced here: in memory, where there is such a directory, that costs
/// nothing.
fs::path fast_directory() {
  return fs::is_directory("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
}

enum class Harm { eio, enospc, half, crash };
constexpr int kCrashed = 9;

bool applies(Harm harm, IoCall call, std::size_t bytes) {
  switch (harm) {
    case Harm::eio: return true;
    case Harm::enospc:
      return call == IoCall::write || call == IoCall::sync || call == IoCall::resize ||
             call == IoCall::close || call == IoCall::create_directory;
    case Harm::half: return (call == IoCall::read || call == IoCall::write) && bytes > 1;
    case Harm::crash: return true;
  }
  return false;
}

/// The n-th call, from 0, of those that can be harmed, while it lives.
class Harmed {
 public:
  Harmed(Harm harm, int n, bool can_exchange = true) {
    io::set_io_hook(
        [this, harm, n, can_exchange](IoCall call, const fs::path& path, std::size_t bytes) {
          io::IoVerdict verdict;
          if (call == IoCall::exchange && !can_exchange) verdict.error = EINVAL;
          if (!applies(harm, call, bytes) || calls_++ != n) return verdict;
          what_ = fmt::format("call {}, {} of {}", n, enum_word(call), path.string());
          if (harm == Harm::crash) ::_exit(kCrashed);
          if (harm == Harm::half) verdict.at_most = bytes / 2;
          if (harm == Harm::eio) verdict.error = EIO;
          if (harm == Harm::enospc) verdict.error = ENOSPC;
          return verdict;
        });
  }
  ~Harmed() { io::set_io_hook({}); }

  /// Empty if there was no n-th call.
  const std::string& what() const { return what_; }

 private:
  int calls_ = 0;
  std::string what_;
};

std::ptrdiff_t open_descriptors() {
  return std::distance(fs::directory_iterator("/proc/self/fd"), {});
}

/// Does the work with its first, second, ... call harmed; prepare() before and check(succeeded)
/// after each. Returns how many calls there were.
template <typename Prepare, typename Work, typename Check>
int harm_every_call(Harm harm, const fs::path& root, Prepare&& prepare, Work&& work,
                    Check&& check) {
  for (int n = 0;; ++n) {
    prepare();
    const auto descriptors = open_descriptors();
    std::string error, what;
    {
      const Harmed harmed(harm, n);
      try {
        work();
      } catch (const Error& e) {
        // What the system refuses is never taken for damage, which would cost a good file.
        EXPECT_EQ(e.exit_code(), ExitCode::io) << e.what();
        error = e.what();
      }
      what = harmed.what();
    }
    SCOPED_TRACE(what + ": " + error);
    EXPECT_EQ(open_descriptors(), descriptors);
    if (!error.empty()) {
      EXPECT_NE(error.find(root.string()), std::string::npos) << "names no file";
    }
    if (what.empty() || harm == Harm::half) {
      EXPECT_EQ(error, "") << "nothing was wrong";
    }
    check(error.empty());
    if (what.empty() || testing::Test::HasFatalFailure()) return n;
  }
}

TestModel small_model(unsigned seed) {
  Random random(seed);
  TestModel model;
  for (const char* state : {"master", "adam_m"}) {
    for (const auto& [name, shape] :
         {std::pair<const char*, io::Shape>{"vocabulary.weight", {13, 7}},
          {"block.0.norm.bias", {9}}})
      model.push_back(
          {name, state, shape, DType::f32, random.numbers(DType::f32, shape.elements())});
  }
  return model;
}

bool holds(const fs::path& path, const TestModel& model) {
  auto checkpoint = io::Checkpoint::open(path);
  checkpoint.check_files();
  return std::all_of(model.begin(), model.end(), [&](const TestTensor& t) {
    std::vector<std::byte> got(t.bytes.size());
    checkpoint.read(t.name, t.state, io::Box(t.shape), t.type, got);
    return got == t.bytes;
  });
}

/// Two checkpoints, of steps 10 and 20, of the old model; then a save of the new one.
class EveryCallOfASave : public testing::TestWithParam<std::int64_t> {
 protected:
  EveryCallOfASave() { fs::create_directory(pristine_); }

  void SetUp() override {
    Random random(1);
    for (const std::int64_t step : {10, 20}) save(random, pristine_, old_, 2, {.step = step});
  }
  void start_afresh() {
    fs::remove_all(checkpoints_);
    fs::copy(pristine_, checkpoints_, fs::copy_options::recursive);
  }
  void save_new(std::int64_t step) {
    Random random(2);
    save(random, checkpoints_, new_, 2, {.step = step});
    io::prune_checkpoints(checkpoints_, 2, 0, kLaterUpdates);
  }
  /// The newest checkpoint is a whole one, the old or the new; and the next save succeeds.
  void expect_sound(bool saved) {
    const auto entries = io::list_checkpoints(checkpoints_);
    ASSERT_FALSE(entries.empty());
    const auto& [step, path] = entries.front();
    EXPECT_TRUE(io::verify_checkpoint(path).empty());
    const bool is_new = step == GetParam() && holds(path, new_);
    if (saved) {
      EXPECT_TRUE(is_new);
    } else if (!is_new) {
      EXPECT_EQ(step, 20);
      EXPECT_TRUE(holds(path, old_));
    }
    save_new(40);
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(checkpoints_))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    EXPECT_EQ(names.size(), 2U) << fmt::format("{}", fmt::join(names, " "));
    EXPECT_TRUE(holds(io::checkpoint_path(checkpoints_, 40), new_));
  }
  void harm_a_save(Harm harm) {
    const int calls = harm_every_call(
        harm, temporary_.path(), [&] { start_afresh(); }, [&] { save_new(GetParam()); },
        [&](bool succeeded) { expect_sound(succeeded); });
    EXPECT_GT(calls, 10);
    RecordProperty("calls", calls);
  }

  TemporaryDirectory temporary_{fast_directory()};
  fs::path pristine_ = temporary_.path() / "pristine",
           checkpoints_ = temporary_.path() / "checkpoints";
  TestModel old_ = small_model(3), new_ = small_model(4);
};

TEST_P(EveryCallOfASave, FailsWithEio) { harm_a_save(Harm::eio); }
TEST_P(EveryCallOfASave, FailsWithEnospc) { harm_a_save(Harm::enospc); }
TEST_P(EveryCallOfASave, MovesHalfOfItsBytes) { harm_a_save(Harm::half); }

TEST_P(EveryCallOfASave, IsTheLastBeforeACrash) {
  int n = 0, status = 0;
  do {
    start_afresh();
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const Harmed harmed(Harm::crash, n);
      save_new(GetParam());
      ::_exit(0);
    }
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    SCOPED_TRACE(fmt::format("crash at call {}", n++));
    expect_sound(status == 0);
    ASSERT_FALSE(HasFatalFailure());
  } while (WEXITSTATUS(status) == kCrashed);
  EXPECT_EQ(status, 0);
  EXPECT_GT(n, 10);
}

// A step after the newest, and the newest anew.
INSTANTIATE_TEST_SUITE_P(Of, EveryCallOfASave, testing::Values(30, 20));

/// On file systems that cannot exchange names. After a crash, as after an error, both steps are
/// there, once the next start has cleaned up.
class Replacing : public testing::Test {
 protected:
  void start_afresh() {
    fs::remove_all(checkpoints_);
    Random random(7);
    for (const std::int64_t step : {10, 20}) save(random, checkpoints_, old_, 1, {.step = step});
  }
  /// Whether it came to its end.
  bool replace(Harm harm, int n, std::string& what) {
    const Harmed harmed(harm, n, /*can_exchange=*/false);
    Random random(8);
    bool saved = true;
    try {
      save(random, checkpoints_, new_, 1, {.step = 20});
    } catch (const IoError&) {
      saved = false;
    }
    what = harmed.what();
    return saved;
  }
  void expect_sound(bool saved) {
    io::clean_up_checkpoints(checkpoints_);
    const auto entries = io::list_checkpoints(checkpoints_);
    ASSERT_EQ(entries.size(), 2U);
    EXPECT_TRUE(io::verify_checkpoint(entries[0].path).empty());
    EXPECT_TRUE(holds(entries[0].path, new_) || (!saved && holds(entries[0].path, old_)));
    EXPECT_EQ(std::distance(fs::directory_iterator(checkpoints_), {}), 2) << "left-overs";
  }

  TemporaryDirectory temporary_{fast_directory()};
  fs::path checkpoints_ = temporary_.path() / "checkpoints";
  TestModel old_ = small_model(5), new_ = small_model(6);
};

TEST_F(Replacing, EveryCallFails) {
  std::string what;
  for (int n = 0; n == 0 || !what.empty(); ++n) {
    start_afresh();
    const bool saved = replace(Harm::eio, n, what);
    SCOPED_TRACE(what);
    expect_sound(saved);
    ASSERT_FALSE(HasFatalFailure());
  }
}

TEST_F(Replacing, EveryCallIsTheLastBeforeACrash) {
  int restored = 0, status = 0, n = 0;
  do {
    start_afresh();
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      std::string what;
      ::_exit(replace(Harm::crash, n, what) ? 0 : 1);
    }
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    SCOPED_TRACE(fmt::format("crash at call {}", n++));
    restored += fs::exists(io::checkpoint_path(checkpoints_, 20)) ? 0 : 1;
    expect_sound(status == 0);
    ASSERT_FALSE(HasFatalFailure());
  } while (WEXITSTATUS(status) == kCrashed);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(restored, 1) << "the crash between the two renames";
}

TEST(EveryCall, OfALoad) {
  const TemporaryDirectory temporary(fast_directory());
  const auto model = small_model(8);
  Random random(9);
  for (const std::int64_t step : {10, 20}) save(random, temporary.path(), model, 2, {.step = step});
  for (const Harm harm : {Harm::eio, Harm::half}) {
    bool right = false;
    const int calls = harm_every_call(
        harm, temporary.path(), [&] { right = false; },
        [&] {
          const auto entries = io::list_checkpoints(temporary.path());
          ASSERT_EQ(entries.size(), 2U);
          right = holds(entries[0].path, model) && io::verify_checkpoint(entries[0].path).empty();
        },
        [&](bool succeeded) {
          // Verification reports what it cannot read instead of throwing.
          EXPECT_TRUE(right || !succeeded || harm == Harm::eio);
        });
    EXPECT_GT(calls, 10);
  }
  EXPECT_TRUE(holds(io::list_checkpoints(temporary.path())[0].path, model));
}

TEST(EveryCall, OfReadingTokens) {
  const TemporaryDirectory temporary(fast_directory());
  const std::vector<std::string> entries{temporary.path() / "a", temporary.path() / "b"};
  std::vector<std::int32_t> want;
  for (const auto& entry : entries) {
    io::MegatronWriter writer(entry, 1000);
    std::vector<std::int32_t> tokens(500);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::int32_t>((i * 7 + want.size()) % 1000);
    writer.append(tokens);
    writer.end_document();
    writer.publish();
    want.insert(want.end(), tokens.begin(), tokens.end());
  }
  for (const Harm harm : {Harm::eio, Harm::half}) {
    std::vector<std::int32_t> got;
    const int calls = harm_every_call(
        harm, temporary.path(), [&] { got.clear(); },
        [&] {
          const io::TokenCorpus corpus(entries, 1000);
          got.resize(static_cast<std::size_t>(corpus.tokens()));
          for (std::size_t at = 0; at < got.size(); at += 100)
            corpus.read(static_cast<std::int64_t>(at), std::span(got).subspan(at, 100));
        },
        [&](bool succeeded) { EXPECT_TRUE(got == want || !succeeded); });
    EXPECT_GT(calls, 10);
  }
}

TEST(EveryCall, OfTokenizing) {
  const TemporaryDirectory temporary(fast_directory());
  const fs::path out = temporary.path() / "made" / "out";
  const std::vector<fs::path> inputs{temporary.path() / "a.jsonl", temporary.path() / "b.jsonl"};
  spit(inputs[0], R"({"text": "the first", "label": "x"})");
  spit(inputs[1], "{\"text\": \"one\", \"label\": \"a\"}\n{\"text\": \"two\", \"label\": \"x\"}\n");
  auto bytes = io::Tokenizer::bytes();
  const std::vector<std::string> entries{out};
  for (const Harm harm : {Harm::eio, Harm::enospc, Harm::half}) {
    const int calls = harm_every_call(
        harm, temporary.path(), [] {},
        [&] {
          io::create_directories(out.parent_path());
          tokenize_in_parts(inputs, out, bytes, 2,
                            {.labels = io::LabelSource::member, .label_key = "label"});
        },
        [&](bool succeeded) {
          if (succeeded) {
            const io::TokenCorpus corpus(entries, 256);
            EXPECT_EQ(corpus.tokens(), 15);
            const io::TokenCorpus::TokenFile& file = corpus.files()[0];
            EXPECT_EQ(io::read_document_labels(file, *io::label_names_of(file)),
                      (std::vector{1, 0, 1}));
            EXPECT_EQ(io::open_kept_tokenizer(io::tokenizer_beside(out)).vocab(), 256);
          }
          fs::remove_all(out.parent_path());
        });
    EXPECT_GT(calls, 10);
  }
}

TEST(EveryCall, OfAnAtomicFileLeavesTheOldOneOrTheNew) {
  const TemporaryDirectory temporary(fast_directory());
  const auto path = temporary.path() / "file";
  const std::string big(std::size_t{3} << 20, 'n');
  for (const Harm harm : {Harm::eio, Harm::enospc, Harm::half}) {
    harm_every_call(
        harm, temporary.path(), [&] { spit(path, "old"); },
        [&] {
          io::AtomicFile file(path);
          file.append("new");
          file.append(big);
          file.publish();
        },
        [&](bool succeeded) {
          const auto now = slurp(path);
          EXPECT_TRUE(now == "new" + big || (!succeeded && now == "old"));
          EXPECT_EQ(std::distance(fs::directory_iterator(temporary.path()), {}), 1) << "left-overs";
        });
  }
}

}  // namespace
}  // namespace tessera
