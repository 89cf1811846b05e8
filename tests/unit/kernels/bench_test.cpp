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

}  // namespace
}  // namespace tessera::kernels::test
