// Files, includes, --set, unknown names, and the list of everything that is wrong.
#include "deck/load.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "deck_text.hpp"

namespace tessera::deck {
namespace {

namespace fs = std::filesystem;

class DeckFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::temp_directory_path() /
           fmt::format("tessera_deck_{}_{}", test->name(), static_cast<const void*>(this));
    fs::create_directories(dir_ / "sub");
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string write(const std::string& name, const std::string& text) {
    const std::string path = (dir_ / name).string();
    std::ofstream(path) << text;
    return path;
  }

  static std::string refusal_of_file(const std::string& path) {
    try {
      load_deck(path);
      return "";
    } catch (const DeckError& error) {
      return error.what();
    }
  }

  fs::path dir_;
};

TEST_F(DeckFiles, LaterIncludesOverrideEarlierAndSetOverridesAll) {
  write("base.toml", std::string(kSmallDeck) + "eps = 1e-6\nweight_decay = 0.1\n");
  write("sub/other.toml", "include = [\"../base.toml\"]\n[optimizer]\neps = 2e-6\nlr = 2.0\n");
  write("third.toml", "[optimizer]\neps = 3e-6\n");
  const std::string path =
      write("deck.toml", "include = [\"sub/other.toml\", \"third.toml\"]\n[optimizer]\nlr = 5.0\n");
  const LoadedDeck plain = load_deck(path);
  EXPECT_EQ(plain.deck.optimizer.eps, 3e-6);
  EXPECT_EQ(plain.deck.optimizer.lr, 5.0);
  EXPECT_EQ(plain.deck.optimizer.weight_decay, 0.1);
  EXPECT_EQ(plain.where("optimizer.lr"), path + ":3:6");
  EXPECT_EQ(plain.where("optimizer.eps"), (dir_ / "third.toml").string() + ":2:7");
  EXPECT_EQ(plain.where("optimizer.clip_norm"), path + ":1:1");
  EXPECT_TRUE(plain.explicitly_set("optimizer.lr"));
  EXPECT_FALSE(plain.explicitly_set("optimizer.clip_norm"));

  const std::vector<std::string> sets = {"optimizer.lr=6", "optimizer.eps = 4e-6",
                                         "optimizer.lr=7.5", "zero.quantize.weights=none"};
  const LoadedDeck set = load_deck(path, sets);
  EXPECT_EQ(set.deck.optimizer.lr, 7.5);
  EXPECT_EQ(set.deck.optimizer.eps, 4e-6);
  EXPECT_EQ(set.where("optimizer.lr"), "--set #3");
  EXPECT_TRUE(set.explicitly_set("zero.quantize.weights"));
}

TEST_F(DeckFiles, ErrorsNameTheFileThatHoldsThem) {
  const std::string base = write("base.toml", std::string(kSmallDeck) + "beta = 1\n");
  const std::string path = write("deck.toml", "include = [\"base.toml\"]\n[zero]\nstage = 9\n");
  const std::string message = refusal_of_file(path);
  expect_contains(message,
                  base + ":19:1: unknown key optimizer.beta (did you mean optimizer.betas");
  expect_contains(message, path + ":3:9: zero.stage = 9");
}

TEST_F(DeckFiles, CyclesAndMultiplyingIncludesEnd) {
  const std::string a = write("a.toml", "include = [\"b.toml\"]\n");
  const std::string b = write("b.toml", "include = [\"a.toml\"]\n");
  expect_contains(refusal_of_file(a), b + ":1:11: " + a + " includes itself");
  for (int i = 0; i < 20; ++i) {
    write(fmt::format("n{}.toml", i),
          fmt::format("include = [\"n{}.toml\", \"n{}.toml\"]\n", i + 1, i + 1));
  }
  write("n20.toml", "");
  expect_contains(refusal_of_file((dir_ / "n0.toml").string()), "more than 64 files");
}

TEST_F(DeckFiles, ADiamondIsNoCycle) {
  write("base.toml", std::string(kSmallDeck));
  write("b.toml", "include = [\"base.toml\"]\n");
  write("c.toml", "include = [\"base.toml\"]\n");
  EXPECT_EQ(load_deck(write("deck.toml", "include = [\"b.toml\", \"c.toml\"]")).deck.run.steps, 10);
}

TEST_F(DeckFiles, WhatCannotBeReadIsSaid) {
  expect_contains(refusal_of_file("no/such.toml"), "no/such.toml: No such file or directory");
  expect_contains(refusal_of_file((dir_ / "sub").string()), "directory");
  const std::string path = write("deck.toml", "include = [\"gone.toml\"]\n");
  expect_contains(refusal_of_file(path), path + ":1:11: cannot read");
  expect_contains(refusal_of_file(path), "gone.toml");
  expect_contains(refusal_of_file(write("big.toml", std::string((1 << 20) + 1, '#'))),
                  "it is larger than 1048576 bytes");
  expect_contains(refusal_of_file(write("list.toml", "include = \"a.toml\"\n")),
                  "include = \"a.toml\" must be a list of files");
}

TEST_F(DeckFiles, OnlyRegularFilesAreRead) {
  expect_contains(refusal_of_file("/dev/zero"), "it is a character device, not a regular file");
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  expect_contains(refusal_of_file((dir_ / "fifo").string()), "it is a FIFO, not a regular file");
  const std::string path = write("deck.toml", "include = [\"fifo\"]\n");
  expect_contains(refusal_of_file(path), path + ":1:11: cannot read");
  expect_contains(refusal_of_file(path), "it is a FIFO, not a regular file");
}

TEST_F(DeckFiles, NamesOfFilesCannotBreakALineOrImitateOne) {
  const std::string path = write("a\n\x1b[2Jb.toml", "[run]\nstps = 1\n");
  const std::string message = refusal_of_file(path);
  expect_contains(message, "a\\n\\x1b[2Jb.toml:2:1: unknown key run.stps");
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
}

TEST(Load, SyntaxErrorsHaveAPlaceAndHideWhatFollowsFromThem) {
  const std::string message = refusal("[run]\nsteps = = 3\n");
  expect_contains(message, "deck.toml:2:9: ");
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 0) << message;
  expect_contains(refusal("[run]\nsteps = 3\nsteps = 4\n"), "deck.toml:3:");
  EXPECT_EQ(refusal("[run]\nsteps = 3\n[=\nseed = 1\n"),
            "deck.toml:3:1: malformed TOML: a key, a value or a bracket is missing");
  expect_contains(refusal("[="), "deck.toml:1:1: malformed");
}

TEST(Load, AllProblemsAreListedInOrder) {
  const std::string text =
      "[zero]\nstge = 1\n[optimizer]\nrate = 1\n[run]\nsteps = 1\nseed = -1\n[modle]\n";
  const std::string message = refusal(text, {"run.backend=tpu", "nonsense"});
  const std::vector<std::string> wanted = {
      "--set #1: run.backend = \"tpu\"",
      "--set #2: \"nonsense\" must be section.key=value",
      "deck.toml:1:1: data.train is missing",
      "deck.toml:2:1: unknown key zero.stge",
      "deck.toml:3:2: optimizer.lr is missing",
      "deck.toml:4:1: unknown key optimizer.rate",
      "deck.toml:7:8: run.seed = -1",
      "deck.toml:8:2: unknown section [modle] (did you mean [model]"};
  for (const std::string& part : wanted) expect_contains(message, part);
  EXPECT_LT(message.find("zero.stge"), message.find("optimizer.rate"));
  EXPECT_LT(message.find("optimizer.rate"), message.find("run.seed"));
}

TEST(Load, UnknownNamesGetTheNearestOne) {
  const auto hint = [](const std::string& key, const std::string& ours) {
    expect_contains(refusal_of(key + "=1"), "(did you mean " + ours + "?)");
  };
  hint("zero.zero_stage", "zero.stage");
  hint("batch.gradient_accumulation_steps", "batch.global");
  hint("batch.micro_batch_size", "batch.micro");
  hint("model.n_layer", "model.layers");
  hint("model.num-attention-heads", "model.heads");
  hint("optimizer.LR", "optimizer.lr");
  hint("optimizer.weight_decya", "optimizer.weight_decay");
  hint("zero.tensor", "parallel.tensor");
  hint("lr", "optimizer.lr");
  hint("zero_optimization.stage", "[zero]");
  hint("optimiser.lr", "[optimizer]");
  hint("run.every", "moe.every or checkpoint.every or evaluate.every or log.every");
  expect_contains(refusal_of("evaluate.xyzxyzxyz=1"), "(keys of [evaluate]: every, batches)");
  expect_contains(refusal_of("qqqqqqqqqqqq.a=1"), "(sections: run, model");
}

TEST(Load, KeysCannotBreakALineOrImitateOne) {
  const std::string message =
      refusal(std::string(kSmallDeck) + "\"a\\nb\" = 1\n[\"zero.quantize\"]\nblock = 1\n");
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 1) << message;
  expect_contains(message, "unknown section");
}

TEST(Load, SectionsMustBeTables) {
  expect_contains(refusal("run = 3\n"), "deck.toml:1:1: run must be a section [run]");
  expect_contains(refusal("[[run]]\nsteps = 3\n"), "run must be a section [run]");
  expect_contains(refusal("[zero]\nquantize = \"int8\"\n"), "must be a section [zero.quantize]");
}

TEST(Load, SetTakesTomlOrABareWord) {
  EXPECT_EQ(paths_of(small_deck({"data.train=[\"a\", 'b']"}).deck.data.train),
            (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(small_deck({"run.dir=/tmp/x=y"}).deck.run.dir, "/tmp/x=y");
  EXPECT_EQ(small_deck({"run.dir=\"runs/one two\""}).deck.run.dir, "runs/one two");
  expect_contains(refusal_of("data.train=[\"a\""), "--set #1: data.train: ");
  expect_contains(refusal_of("run.steps=1\n[zero]\nstage=1"), "--set #1: run.steps");
  expect_contains(refusal_of("run.steps="), "--set #1: run.steps");
  expect_contains(refusal_of("=3"), "must be section.key=value");
  expect_contains(refusal_of("include=[\"x\"]"), "unknown key include");
}

}  // namespace
}  // namespace tessera::deck
