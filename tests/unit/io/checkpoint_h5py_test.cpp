// The whole tensors that other programs see in model.h5 are what was written, whatever the layout.
#include <gtest/gtest.h>
#include <hdf5.h>

#include <cstdlib>

#include "checkpoint_fixture.hpp"
#include "core/error.hpp"

namespace tessera {
namespace {

using namespace test;

constexpr const char* kPython = "/usr/bin/python3";

int run(const std::string& command) { return std::system((command + " 2>&1").c_str()); }

/// What the script printed; fails the test if the script does.
std::string run_script(const std::filesystem::path& checkpoint, const std::string& expected,
                       const std::filesystem::path& log) {
  // From another directory: the rank files are found beside model.h5 all the same.
  const std::string command =
      fmt::format("cd / && {} {}/tests/checkpoint_h5py.py {} {} > {}", kPython, TESSERA_SOURCE_DIR,
                  checkpoint.string(), expected, log.string());
  EXPECT_EQ(run(command), 0) << command << "\n" << slurp(log);
  return slurp(log);
}

void write_expected(const std::filesystem::path& directory, const TestTensor& t) {
  std::filesystem::create_directories(directory / t.state);
  spit(directory / t.state / t.name,
       {reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size()});
}

class CheckpointH5py : public ::testing::Test {
 protected:
  void SetUp() override {
    if (run(std::string(kPython) + " -c 'import h5py, numpy' > /dev/null") != 0)
      GTEST_SKIP() << "h5py or numpy is not installed for " << kPython;
  }
};

TEST_F(CheckpointH5py, SeesWholeTensorsForRandomShardings) {
  Random random(21);
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f32}) {
    TemporaryDirectory temporary;
    const auto model = random_model(random, type == DType::bf16, type);
    const int ranks = 1 + static_cast<int>(random.below(6));
    const auto path = save(random, temporary.path() / "checkpoints", model, ranks, {.step = 1});
    const auto expected = temporary.path() / "expected";
    for (TestTensor t : model) {
      write_expected(expected, t);
      if (type == DType::f32 && t.state == "master") {  // seen under both names
        t.state = "parameters";
        write_expected(expected, t);
      }
    }
    const auto out = run_script(path, expected.string(), temporary.path() / "log");
    EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 20) << out;  // 5 tensors of 4 states
    EXPECT_NE(out.find(fmt::format("parameters/block.0.attention.q.weight {} (17, 19) ",
                                   to_string(type))),
              std::string::npos)
        << out;
  }
}

TEST_F(CheckpointH5py, NoticesAWrongElement) {  // that the test above can fail
  Random random(22);
  TemporaryDirectory temporary;
  TestTensor t{"w", "master", {3, 5}, DType::f32, random.numbers(DType::f32, 15)};
  const auto path = save(random, temporary.path() / "checkpoints", {t}, 2, {.step = 1});
  t.bytes[33] ^= std::byte{1};
  write_expected(temporary.path() / "expected", t);
  const auto log = temporary.path() / "log";
  EXPECT_NE(
      run(fmt::format("{} {}/tests/checkpoint_h5py.py {} {} > {}", kPython, TESSERA_SOURCE_DIR,
                      path.string(), (temporary.path() / "expected").string(), log.string())),
      0);
  EXPECT_NE(slurp(log).find("/master/w differs"), std::string::npos) << slurp(log);
}

}  // namespace
}  // namespace tessera
