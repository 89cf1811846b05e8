// Machine files: what they say is what is used, what is wrong with them is told with its place.
#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.hpp"
#include "deck/machine.hpp"

namespace tessera::deck {
namespace {

constexpr const char* kGood = R"(ranks_per_node = 4
memory_rate = 2e9
memory = "3GiB"
[gemm]
n = [100, 1000]
f32 = [1e9, 3e9]
[link.inter]
latency = 1e-5
rate = 1e8
)";

std::string refusal(const std::string& text) {
  try {
    parse_machine(text, "m.toml");
  } catch (const DeckError& e) {
    return e.what();
  }
  return "";
}

TEST(Machine, RatesAreLinearInTheLogarithmOfTheSizeAndConstantBeyond) {
  const Machine m = parse_machine(kGood, "dir/m.toml");
  EXPECT_EQ(m.name, "m");
  EXPECT_EQ(m.memory.count, std::int64_t{3} << 30);
  const auto rate = [&](double n) { return m.gemm_rate(DType::f32, 2 * n * n * n); };
  EXPECT_DOUBLE_EQ(rate(10), 1e9);
  EXPECT_DOUBLE_EQ(rate(5000), 3e9);
  EXPECT_NEAR(rate(std::sqrt(100.0 * 1000.0)), 2e9, 1);  // halfway; cbrt and log round
  EXPECT_DOUBLE_EQ(m.attention_rate(DType::f32, 64), 1e9) << "as products of the size of a head";
  EXPECT_FALSE(m.intra);
  EXPECT_EQ(m.activations, MachineActivations::apart);
  EXPECT_DOUBLE_EQ(m.inter->rate, 1e8);
  EXPECT_THROW(m.gemm_rate(DType::bf16, 1), DeckError);
}

TEST(Machine, ItsTextSaysAllOfIt) {
  const Machine m = parse_machine(R"(ranks_per_node = 4
threads = 3
memory = 2000000000
memory_rate = 2e9
host_memory_rate = 1.5e10
kernel_start = 3e-06
collectives = "ring"
activations = "in_products"
[gemm]
n = [100, 1000]
f32 = [1e9, 3e9]
bf16 = [2e9, 6e9]
fp8 = [3e9, 9e9]
[attention]
bf16 = 5e8
[kernel.f32]
add = 4e9
norm = 3e9
[peak]
bf16 = 1e15
[link.intra]
latency = 1e-06
rate = 1e11
[link.inter]
latency = 1e-05
rate = 1e8
[link.host]
latency = 2e-06
rate = 2e10
[disk]
write = 1e9
read = 2e9
)",
                                  "m.toml");
  const std::string text = to_text(m);
  const Machine again = parse_machine(text, "m.toml");
  EXPECT_EQ(to_text(again), text);
  EXPECT_EQ(again.threads, 3);
  EXPECT_EQ(again.memory.count, 2'000'000'000);
  EXPECT_EQ(again.host_memory_rate, 1.5e10);
  EXPECT_EQ(again.kernel_start, 3e-6);
  EXPECT_EQ(again.collectives, Collectives::ring);
  EXPECT_EQ(again.activations, MachineActivations::in_products);
  EXPECT_EQ(again.gemm, m.gemm);
  EXPECT_EQ(again.attention, m.attention);
  EXPECT_EQ(again.kernel, m.kernel);
  EXPECT_EQ(again.peak, m.peak);
  EXPECT_EQ(again.intra->rate, 1e11);
  EXPECT_EQ(again.inter->latency, 1e-5);
  EXPECT_EQ(again.host->rate, 2e10);
  EXPECT_EQ(again.disk_read, 2e9);
}

TEST(Machine, AttentionHasARateOfItsOwnWhereTheFileSaysSo) {
  const Machine m = parse_machine(std::string(kGood) + "[attention]\nf32 = 5e8\n", "m.toml");
  EXPECT_DOUBLE_EQ(m.attention_rate(DType::f32, 64), 5e8);
}

TEST(Machine, WordsAreThoseOfItsTable) {
  const Machine m = parse_machine("activations = \"in_products\"\n" + std::string(kGood), "m.toml");
  EXPECT_EQ(m.activations, MachineActivations::in_products);
  EXPECT_NE(refusal("activations = \"fused\"\n" + std::string(kGood))
                .find("m.toml:1:15: activations = \"fused\" must be one of apart|in_products"),
            std::string::npos);
}

TEST(Machine, ProblemsNameFileAndLine) {
  const std::string good(kGood);
  EXPECT_NE(refusal("memory_rat = 1\n" + good)
                .find("m.toml:1:1: unknown key memory_rat (did you "
                      "mean memory_rate?)"),
            std::string::npos);
  EXPECT_NE(refusal("threads = -2\n" + good).find("m.toml:1:11: threads = -2 must be"),
            std::string::npos);
  EXPECT_NE(refusal("[gemm]\nn = [1]\n").find("memory_rate is missing"), std::string::npos);
  EXPECT_NE(refusal(good + "[link.intra]\nrate = 1.0\n").find("both latency and rate"),
            std::string::npos);
  EXPECT_NE(refusal(good + "[peak]\nf33 = 1.0\n").find("unknown key peak.f33"), std::string::npos);
  std::string shorter = good;
  shorter.replace(shorter.find("[1e9, 3e9]"), 10, "[1e9]");
  EXPECT_NE(refusal(shorter).find("1 rates for the 2 sizes"), std::string::npos);
  EXPECT_THROW(load_machine("/nonexistent/m.toml"), DeckError);
  try {
    load_machine("/dev/zero");
    ADD_FAILURE();
  } catch (const DeckError& e) {
    EXPECT_NE(std::string(e.what()).find("it is a character device"), std::string::npos)
        << e.what();
  }
}

TEST(Machine, ShippedFilesAreGood) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(TESSERA_SOURCE_DIR) / "slurm" / "machines")) {
    if (entry.path().extension() != ".toml") continue;
    EXPECT_NO_THROW(load_machine(entry.path())) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 6);
}

}  // namespace
}  // namespace tessera::deck
