// The GPUs of a node, from files as Linux shows them, and who may work with whom.
#include "backend/gpus.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temporary_directory.hpp"

namespace tessera::backend {
namespace {

class Bus {
 public:
  void add(const std::string& id, const char* vendor, const char* device_class,
           const char* cores = "") {
    const auto device = directory_.path() / "sys/bus/pci/devices" / id;
    std::filesystem::create_directories(device);
    std::ofstream(device / "vendor") << vendor << '\n';
    std::ofstream(device / "class") << device_class << '\n';
    std::ofstream(device / "local_cpulist") << cores << '\n';
  }
  const std::filesystem::path& root() const { return directory_.path(); }

 private:
  test::TemporaryDirectory directory_;
};

TEST(Gpus, AreFoundOnTheBus) {
  Bus bus;
  EXPECT_EQ(nvidia_gpus(bus.root()), 0);
  bus.add("0000:00:01.0", "0x8086", "0x030000");  // another maker's
  bus.add("0000:1b:00.0", "0x10de", "0x030200");
  bus.add("0000:1c:00.0", "0x10de", "0x030000");
  bus.add("0000:1c:00.1", "0x10de", "0x040300");  // its sound
  EXPECT_EQ(nvidia_gpus(bus.root()), 2);
}

TEST(Gpus, HaveCoresNearby) {
  Bus bus;
  bus.add("0000:1b:00.0", "0x10de", "0x030200", "0-2,8,10-11");
  bus.add("0000:1c:00.0", "0x10de", "0x030200", "0-x");
  EXPECT_EQ(cores_near("0000:1b:00.0", bus.root()), (std::vector<int>{0, 1, 2, 8, 10, 11}));
  EXPECT_TRUE(cores_near("0000:1c:00.0", bus.root()).empty());
  EXPECT_TRUE(cores_near("0000:ff:00.0", bus.root()).empty());
}

TEST(Gpus, MustBeAlikeAndApart) {
  const GpuOfRank a{"n1", "aa", "NVIDIA H200"}, b{"n1", "bb", "NVIDIA H200"},
      c{"n2", "cc", "NVIDIA A100-SXM4-80GB"}, d{"n2", "aa", "NVIDIA H200"};
  EXPECT_FALSE(objection(std::array{a, b, d}, false));
  const auto mixed = objection(std::array{a, b, c}, false);
  ASSERT_TRUE(mixed);
  EXPECT_NE(mixed->find("rank 2 a NVIDIA A100-SXM4-80GB on n2"), mixed->npos) << *mixed;
  const auto twice = objection(std::array{a, b, a}, false);
  ASSERT_TRUE(twice);
  EXPECT_NE(twice->find("ranks 0 and 2"), twice->npos) << *twice;
  EXPECT_FALSE(objection(std::array{a, b, a}, true));
  EXPECT_EQ(GpuOfRank::parse(c.text()).name, c.name);
  EXPECT_EQ(GpuOfRank::parse(c.text()).bus_id, c.bus_id);
  EXPECT_EQ(GpuOfRank::parse(c.text()).host, c.host);
}

TEST(Gpus, AreOnEveryRankOrTheDeckOrANodeIsWrong) {
  const std::string none = "n7 has no NVIDIA GPU", hidden = "this process may use no GPU of n8";
  check_presence({});  // on ranks other than 0
  check_presence(std::array<std::string, 2>{});
  for (const auto& absences : {std::vector{none}, std::vector{none, hidden}}) {
    const std::string nowhere = test::message_of<DeckError>([&] { check_presence(absences); });
    EXPECT_TRUE(nowhere.starts_with(none + ": run on nodes with GPUs")) << nowhere;
  }
  const std::string some = test::message_of<DeviceError>([&] {
    check_presence(std::array<std::string, 4>{"", none, "", hidden});
  });
  EXPECT_TRUE(some.starts_with("rank 1: n7 has no NVIDIA GPU, while 2 of 4 ranks")) << some;
}

TEST(Gpus, MustHaveOneAnswerToAttention) {
  const AttentionAnswers takes{{"a", ""}, {"b", "too wide"}}, more{{"a", ""}, {"c", ""}},
      refuses{{"b", "too wide, says another"}, {"c", "too new"}};
  EXPECT_EQ(attention_text(std::array{takes, more}),
            (std::vector<std::string>{"a: cuDNN", "b: own kernel: too wide", "c: cuDNN"}));
  EXPECT_EQ(attention_text(std::array{takes, refuses}).size(), 3U);
  try {
    attention_text(std::array{takes, more, refuses});
    FAIL() << "ranks that compute differently";
  } catch (const DeviceError& e) {
    EXPECT_NE(std::string_view(e.what()).find(
                  "c: rank 1 uses cuDNN, rank 2 own kernel: too new; nodes need the same cuDNN"),
              std::string_view::npos)
        << e.what();
  }
}

TEST(Gpus, MultiplyFp8FromAda) {
  EXPECT_FALSE(multiplies_fp8(8, 0));
  EXPECT_FALSE(multiplies_fp8(8, 6));
  for (const auto& [major, minor] : {std::pair{8, 9}, {9, 0}, {10, 0}, {12, 0}}) {
    EXPECT_TRUE(multiplies_fp8(major, minor));
    EXPECT_FALSE(fp8_objection("n1", "NVIDIA H200", major, minor));
  }
  const auto refused = fp8_objection("n1", "NVIDIA A100-SXM4-80GB", 8, 0);
  ASSERT_TRUE(refused);
  EXPECT_TRUE(
      refused->starts_with("n1 has a NVIDIA A100-SXM4-80GB of compute capability 8.0: "
                           "precision.matmul = \"fp8\" needs 8.9"))
      << *refused;
}

TEST(Gpus, HavePeakRates) {
  EXPECT_EQ(peak_rate("NVIDIA H200"), 989.4e12);
  EXPECT_EQ(peak_rate("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(peak_rate("NVIDIA H100 80GB HBM3"), 989.4e12);
  EXPECT_EQ(peak_rate("NVIDIA L40S"), 362e12);
  EXPECT_EQ(peak_rate("NVIDIA L4"), 121e12);
  EXPECT_EQ(peak_rate("NVIDIA B200"), 2250e12);
  EXPECT_EQ(peak_rate("NVIDIA H100 NVL"), 835.5e12);
  EXPECT_EQ(peak_rate("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(peak_rate("NVIDIA RTX A4000"), 0);
  EXPECT_EQ(peak_rate("NVIDIA GeForce RTX 9990"), 0);
}

}  // namespace
}  // namespace tessera::backend
