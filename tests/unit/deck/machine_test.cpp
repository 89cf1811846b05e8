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
  EXPECT_DOUBLE_EQ(m.attention_rate(DType::f32, 64, AttentionPass::forward), 1e9)
      << "as products of the size of a head";
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
fp8_conversion = 1.2e9
collectives = "ring"
activations = "in_products"
[gemm]
n = [100, 1000]
f32 = [1e9, 3e9]
bf16 = [2e9, 6e9]
fp8 = [3e9, 9e9]
tf32 = [4e9, 5e9]
[attention]
head_dim = [64, 128]
bf16 = [5e8, 7e8]
[attention_backward]
bf16 = [3e8, 4e8]
[kernel.f32]
add = 4e9
norm = 3e9
[peak]
bf16 = 1e15
tf32 = 5e14
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
  EXPECT_EQ(again.fp8_conversion, 1.2e9);
  EXPECT_EQ(again.collectives, Collectives::ring);
  EXPECT_EQ(again.activations, MachineActivations::in_products);
  EXPECT_EQ(again.gemm, m.gemm);
  EXPECT_EQ(again.gemm_tf32, (std::vector<double>{4e9, 5e9}));
  EXPECT_EQ(again.attention, m.attention);
  EXPECT_EQ(again.attention_backward, m.attention_backward);
  EXPECT_EQ(again.attention_heads, (std::vector<std::int64_t>{64, 128}));
  EXPECT_EQ(again.kernel, m.kernel);
  EXPECT_EQ(again.peak, m.peak);
  EXPECT_EQ(again.peak_tf32, 5e14);
  EXPECT_EQ(again.intra->rate, 1e11);
  EXPECT_EQ(again.inter->latency, 1e-5);
  EXPECT_EQ(again.host->rate, 2e10);
  EXPECT_EQ(again.disk_read, 2e9);
}

TEST(Machine, AttentionHasARateOfItsOwnWhereTheFileSaysSo) {
  const auto rate = [](const std::string& more, std::int64_t width, AttentionPass pass) {
    return parse_machine(kGood + more, "m.toml").attention_rate(DType::f32, width, pass);
  };
  using enum AttentionPass;
  const std::string one = "[attention]\nf32 = 5e8\n";
  EXPECT_DOUBLE_EQ(rate(one, 64, forward), 5e8);
  EXPECT_DOUBLE_EQ(rate(one, 64, backward), 5e8) << "as forward";
  EXPECT_DOUBLE_EQ(rate(one + "[attention_backward]\nf32 = 3e8\n", 64, backward), 3e8);
  const std::string two = "[attention]\nhead_dim = [64, 256]\nf32 = [5e8, 7e8]\n";
  EXPECT_DOUBLE_EQ(rate(two, 32, forward), 5e8);
  EXPECT_DOUBLE_EQ(rate(two, 128, forward), 6e8) << "linear in the logarithm";
  EXPECT_DOUBLE_EQ(rate(two, 512, backward), 7e8);
  EXPECT_NE(refusal(kGood + two + "f16 = 5e8\n")
                .find("attention.f16 has 1 rates for the 2 sizes of attention.head_dim"),
            std::string::npos);
  EXPECT_NE(refusal(kGood + two + "[attention_backward]\nf32 = [1e8, 2e8, 3e8]\n")
                .find("attention_backward.f32 has 3 rates"),
            std::string::npos);
  EXPECT_NE(refusal(std::string(kGood) + "[attention]\nf32 = [5e8, 7e8]\n")
                .find("attention.f32 has 2 rates for the 1 sizes"),
            std::string::npos);
  EXPECT_NE(refusal(std::string(kGood) + "[attention]\nhead_dim = [64, 64]\nf32 = [1e8, 1e8]\n")
                .find("attention.head_dim must ascend"),
            std::string::npos);
}

TEST(Machine, Tf32GivesProductsOfF32RatesOfTheirOwn) {
  const std::string peaks = "[peak]\nf32 = 4e9\n";
  std::string text = kGood + peaks;
  text.insert(text.find("[link.inter]"), "tf32 = [5e9, 9e9]\n");
  const Machine m = parse_machine(text + "tf32 = 2e10\n", "m.toml");
  EXPECT_DOUBLE_EQ(m.multiplying(Matmul::same).best_gemm_rate(DType::f32), 3e9);
  EXPECT_DOUBLE_EQ(m.multiplying(Matmul::tf32).best_gemm_rate(DType::f32), 9e9);
  EXPECT_DOUBLE_EQ(m.multiplying(Matmul::same).peak.at(DType::f32), 4e9);
  EXPECT_DOUBLE_EQ(m.multiplying(Matmul::tf32).peak.at(DType::f32), 2e10);
  EXPECT_FALSE(parse_machine(text, "m.toml").multiplying(Matmul::tf32).peak.contains(DType::f32))
      << "no peak of TF32, no MFU";
  EXPECT_THROW(parse_machine(kGood + peaks, "m.toml").multiplying(Matmul::tf32), DeckError);
  EXPECT_NE(refusal(text.replace(text.find("[5e9, 9e9]"), 10, "[5e9]"))
                .find("gemm.tf32 has 1 rates for the 2 sizes of gemm.n"),
            std::string::npos);
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
