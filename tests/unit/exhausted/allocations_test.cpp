// Memory that runs out, at every allocation that there is: exit code 4, nothing lost, nothing left.
#include <gtest/gtest.h>

#include "backend/gpus.hpp"
#include "core/thread.hpp"
#include "deck/load.hpp"
#include "io/checkpoint_reader.hpp"
#include "io/checkpoint_verify.hpp"
#include "io/hugging_face.hpp"
#include "io/log_probabilities.hpp"
#include "io/megatron.hpp"
#include "io/safetensors.hpp"
#include "io/token_files.hpp"
#include "io/tokenizer.hpp"
#include "kernels/cpu/device.hpp"
#include "memory/arena.hpp"
#include "memory/hidden_tier.hpp"
#include "plan/ir/print.hpp"
#include "plan/passes/make_plan.hpp"
#include "plan/proof/check.hpp"
#include "setup/inputs.hpp"
#include "streams/background.hpp"
#include "streams/workers.hpp"
#include "support/plan_run.hpp"
#include "unit/deck/deck_text.hpp"
#include "unit/exhausted/every_allocation.hpp"
#include "unit/io/checkpoint_fixture.hpp"

namespace tessera::test {
namespace {

TEST(EveryAllocation, OfADeck) {
  const TemporaryDirectory temporary;
  const std::string path = temporary.path() / "deck.toml";
  spit(temporary.path() / "base.toml", deck::kSmallDeck);
  spit(path, "include = [\"base.toml\"]\n[zero]\nstage = 2\n");
  const auto load = [&] {
    return to_toml(deck::load_deck(path, std::vector<std::string>{"run.name=\"a\""}).deck);
  };
  const auto n = refuse_every_allocation(load, Leaks::of_libraries);
  EXPECT_GT(n, 100);
}

TEST(EveryAllocation, OfADeckThatIsWrong) {
  const auto n = refuse_every_allocation([]() -> std::string {
    try {
      deck::parse_deck("[run]\nstepz = 1\n[zero]\nstage = 9\n", "wrong.toml");
    } catch (const DeckError& e) {
      return e.what();
    }
    return "it was accepted";
  });
  EXPECT_GT(n, 100);
}

TEST(EveryAllocation, OfAPlan) {
  const auto device = kernels::make_cpu_device({.threads = 1});
  auto inputs = plan_inputs_of(gpt2_like(), *device, DType::f32);
  inputs.model.config.layers = 1;
  inputs.model.units = model::model_units(inputs.model.config);
  const plan::PlanShape shape{
      .purpose = plan::PlanPurpose::train, .sequence = 4, .micro = 1, .micro_batches = 1};
  const auto n = refuse_every_allocation([&] {
    const plan::Plan plan = plan::make_plan(inputs, shape, {});
    return std::to_string(plan_hash(plan)) + to_text(plan, inputs);
  });
  EXPECT_GT(n, 1000);
}

TEST(EveryAllocation, OfTokenFiles) {
  const TemporaryDirectory temporary;
  const std::string prefix = temporary.path() / "tokens";
  const auto n = refuse_every_allocation([&] {
    io::MegatronWriter writer(prefix, 100);
    const std::vector<std::int32_t> tokens{1, 2, 3, 4, 5};
    writer.append(tokens);
    writer.end_document();
    writer.publish();
    const io::TokenCorpus corpus(std::vector{prefix}, 100);
    std::vector<std::int32_t> read(5);
    corpus.read(0, read);
    return fmt::format("{}", fmt::join(read, " "));
  });
  EXPECT_GT(n, 10);
}

TEST(EveryAllocation, OfATokenizer) {
  const std::string json =
      slurp(std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/data/tokenizers/prefix_space.json");
  const auto n = refuse_every_allocation_apart([&] {
    io::Tokenizer tokenizer = io::Tokenizer::parse(json, "prefix_space.json");
    return fmt::format("{}", fmt::join(tokenizer.encode("The quick brown fox"), " "));
  });
  EXPECT_GT(n, 1);
}

TEST(EveryAllocation, OfAModelDirectory) {
  const auto directory = std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/data/hf/gpt2";
  const auto n = refuse_every_allocation_apart([&] {
    const io::HfModel model = io::HfModel::open(directory);
    std::vector<float> read(4);
    model.read("final_norm.bias", 0, read);
    return fmt::format("{}", fmt::join(read, " "));
  });
  EXPECT_GT(n, 100);
}

TEST(EveryAllocation, OfWhatAReferenceModelSays) {
  const TemporaryDirectory temporary;
  const auto file = temporary.path() / "reference.json";
  const io::LogProbabilities all{
      .model = 7,
      .corpora = {
          {.files = {{.path = "tokens.bin", .bytes = 10, .hash = 9}}, .documents = {-1.5, -2.5}}}};
  const auto n = refuse_every_allocation_apart([&] {
    io::write_log_probabilities(file, all);
    return fmt::format("{}", fmt::join(io::read_log_probabilities(file).corpora[0].documents, " "));
  });
  EXPECT_GT(n, 10);
}

/// libstdc++ lists directories in noexcept functions that allocate.
TEST(EveryAllocation, OfADirectoryThatIsListed) {
  const TemporaryDirectory temporary;
  const auto devices = std::filesystem::path(temporary.path()) / "sys/bus/pci/devices";
  std::filesystem::create_directories(devices / "0000:17:00.0");
  spit(devices / "0000:17:00.0/vendor", "0x10de");
  spit(devices / "0000:17:00.0/class", "0x030200");
  const auto n = refuse_every_allocation_apart([&] {
    return std::to_string(backend::nvidia_gpus(std::filesystem::path(temporary.path())));
  });
  EXPECT_GT(n, 5);
}

/// Files are synced each time: in memory, where there is such a directory, that costs nothing.
class EveryAllocationOfACheckpoint : public testing::Test {
 protected:
  EveryAllocationOfACheckpoint() {
    Random numbers(1);
    model_.push_back({"matrix", "master", {5, 3}, DType::f32, numbers.numbers(DType::f32, 15)});
  }
  std::filesystem::path save_anew() {
    Random random(2);
    std::filesystem::remove_all(checkpoints_);
    return save(random, checkpoints_, model_, 1, {.step = 10});
  }
  std::string read(const std::filesystem::path& path) {
    auto checkpoint = io::Checkpoint::open(path);
    checkpoint.check_files();
    std::vector<std::byte> got(model_[0].bytes.size());
    checkpoint.read("matrix", "master", io::Box(model_[0].shape), DType::f32, got);
    return got == model_[0].bytes ? "right" : "wrong";
  }

  TemporaryDirectory temporary_{std::filesystem::is_directory("/dev/shm")
                                    ? std::filesystem::path("/dev/shm")
                                    : std::filesystem::temp_directory_path()};
  std::filesystem::path checkpoints_ = temporary_.path() / "checkpoints";
  TestModel model_;
};

TEST_F(EveryAllocationOfACheckpoint, ThatIsRead) {
  const auto path = save_anew();
  EXPECT_GT(refuse_every_allocation_apart([&] { return read(path); }), 100);
}

TEST_F(EveryAllocationOfACheckpoint, ThatIsWritten) {
  const auto save_it = [&] { return save_anew().filename().string(); };
  EXPECT_GT(refuse_every_allocation_apart(save_it), 100);
  EXPECT_EQ(read(save_anew()), "right");
}

TEST(EveryAllocation, OfWhatARankStartsWith) {
  const auto n = refuse_every_allocation([] {
    memory::HiddenTier tier;
    const memory::Arena arena("step", tier, 1 << 12);
    std::vector<std::byte> from(100, std::byte{7}), to(100);
    streams::Workers workers;
    streams::BackgroundStreams streams;
    const streams::Event copied = streams.enqueue(
        1, {}, [&] { return streams::make_copy_task(from.data(), to.data(), 100); });
    streams.wait(copied);
    const streams::Event done =
        streams.enqueue(2, {copied}, [&] { return workers.start([&] { to[0] = {}; }); });
    streams.wait(done);
    return std::string(to[1] == std::byte{7} && to[0] == std::byte{0} ? "right" : "wrong");
  });
  EXPECT_GT(n, 10);
}

TEST(EveryAllocation, OfASurvey) {
  const auto n = refuse_every_allocation([] {
    std::vector<int> done(20);
    in_turns(3, done.size(), [&](std::size_t, std::size_t i) { done[i] = std::stoi("1"); });
    return fmt::format("{}", fmt::join(done, " "));
  });
  EXPECT_GT(n, 3);
}

TEST(LastWords, NeedNoMemory) {
  for (int n = 0; n < 10; ++n) {
    refuse_allocation({.first = n, .all_from_there = true});
    EXPECT_NO_THROW(try_within_a_second([] { std::string(1000, 'x').push_back('y'); })) << n;
    refuse_allocation({});
  }
  try {
    throw IoError("a message that is too long for the place in the string itself");
  } catch (...) {
    refuse_allocation({.first = 0, .all_from_there = true});
    const Ending ending = current_ending();
    refuse_allocation({});
    EXPECT_EQ(ending.code, ExitCode::io);
    EXPECT_EQ(ending.message, "out of memory");
  }
}

TEST(Ending, SaysWhatIsLimited) {
  for (const auto& error : {std::make_error_code(std::errc::not_enough_memory),
                            std::make_error_code(std::errc::resource_unavailable_try_again)}) {
    try {
      throw std::system_error(error, "read");
    } catch (...) {
      EXPECT_EQ(current_ending().code, ExitCode::memory);
      EXPECT_NE(current_ending().message.find("read"), std::string::npos);
    }
  }
  try {
    throw std::bad_alloc();
  } catch (...) {
    EXPECT_TRUE(current_ending().message.starts_with("out of memory: "));
  }
}

}  // namespace
}  // namespace tessera::test
