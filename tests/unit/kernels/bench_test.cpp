#include "kernels/cpu/bench.hpp"

#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

TEST(Bench, HasARowForEveryOperationInBothTypes) {
  const auto device = make_cpu_device({.threads = 2});
  const auto rows = bench_kernels(*device, {.threads = 2,
                                            .repeats = 1,
                                            .samples = 1,
                                            .tokens = 16,
                                            .vocab = 128,
                                            .square = 64,
                                            .elements = 5000});
  for (const BenchRow& row : rows) {
    EXPECT_GT(row.ms, 0) << row.name;
    EXPECT_GT(row.rate, 0) << row.name;
    EXPECT_GT(row.share, 0) << row.name;
  }
  const auto count = [&](std::string_view name) {
    return std::count_if(rows.begin(), rows.end(),
                         [&](const BenchRow& r) { return r.name.starts_with(name); });
  };
  EXPECT_EQ(count("triad"), 1);
  const KernelCall calls[] = {Embed{},
                              EmbedBackward{},
                              AddPositions{},
                              AddNorm{},
                              NormBackward{},
                              AddPending{},
                              ApplyDropout{},
                              Linear{},
                              LinearBackwardInput{},
                              LinearBackwardWeight{},
                              Attention{},
                              AttentionBackward{},
                              Rope{},
                              Activate{},
                              ActivateBackward{},
                              Classify{},
                              ClassifyPart{},
                              ClassifyLoss{},
                              ClassifyGradient{},
                              AdamUpdate{},
                              Fill{},
                              Convert{},
                              TreeSum{},
                              ExactSum{}};
  for (const KernelCall& call : calls) {
    for (DType type : {DType::f32, DType::bf16}) {
      EXPECT_GE(count(fmt::format("{} {}", name_of(call), to_string(type))), 1) << name_of(call);
    }
  }
}

TEST(Bench, MeasuresProductsAndAttentionBySize) {
  const auto device = make_cpu_device({.threads = 1});
  const BenchOptions options{.repeats = 1, .samples = 1, .tokens = 8, .vocab = 64, .square = 256};
  const auto count = [](const std::vector<BenchRow>& rows, std::string_view name,
                        std::string_view shape) {
    return std::count_if(rows.begin(), rows.end(), [&](const BenchRow& r) {
      return r.name == name && r.shape == shape && r.rate > 0 && r.share > 0;
    });
  };
  const auto gemm = bench_gemm(*device, options);
  const auto attention = bench_attention(*device, options);
  for (const char* type : {"f32", "bf16"}) {
    for (const char* way : {"linear", "linear_dgrad", "linear_wgrad"}) {
      for (const char* shape : {"M 128 N 128 K 128", "M 256 N 256 K 256", "M 8 N 64 K 768"})
        EXPECT_EQ(count(gemm, fmt::format("{} {}", way, type), shape), 1) << way << shape;
    }
    for (const char* way : {"attention", "attention_backward"}) {
      for (const char* shape : {"B 1 H 12 T 8 D 64", "B 1 H 12 T 64 D 64"})
        EXPECT_EQ(count(attention, fmt::format("{} {}", way, type), shape), 1) << way << shape;
    }
  }
  EXPECT_GT(triad_rate({.repeats = 1, .elements = 5000}), 0);
  EXPECT_GT(gemm_rate(*device, DType::bf16, 32, options), 0);
}

}  // namespace
}  // namespace tessera::kernels::test
