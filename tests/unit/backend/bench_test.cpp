#include "backend/bench.hpp"

#include <gtest/gtest.h>

namespace tessera::backend {
namespace {

using namespace kernels;

const deck::Backend kKinds[] = {deck::Backend::cpu, deck::Backend::debug};

void expect_rows(const std::vector<BenchRow>& rows) {
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
  for (const std::string_view name : operation_names()) {
    if (name == Verdict::kName) continue;  // a few numbers: it has no rate
    for (DType type : {DType::f32, DType::bf16}) {
      EXPECT_GE(count(fmt::format("{} {}", name, to_string(type))), 1) << name;
    }
  }
  for (const char* how : {"fused", "apart"})
    EXPECT_EQ(count(fmt::format("sum in blocks, {}", how)), 6) << "of three formats, in both types";
}

TEST(Bench, HasARowForEveryOperationInBothTypes) {
  const BenchModel small{.vocab = 128, .samples = 1, .tokens = 16};
  const BenchModel grouped{.columns = 64,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 16,
                           .ffn = 96,
                           .activation = ActivationKind::swiglu,
                           .vocab = 128,
                           .samples = 1,
                           .tokens = 8};
  for (const deck::Backend kind : kKinds) {
    SCOPED_TRACE(enum_word(kind));
    const Backend backend = make_backend({.kind = kind, .threads = 2}, nullptr);
    expect_rows(bench_kernels(
        backend,
        {.threads = 2, .repeats = 1, .models = {small, grouped}, .square = 64, .elements = 5000}));
  }
}

TEST(Bench, MeasuresProductsAndAttentionBySize) {
  const BenchOptions options{
      .repeats = 1, .models = {{.vocab = 64, .samples = 1, .tokens = 8}}, .square = 256};
  const auto count = [](const std::vector<BenchRow>& rows, std::string_view name,
                        std::string_view shape) {
    return std::count_if(rows.begin(), rows.end(), [&](const BenchRow& r) {
      return r.name == name && r.shape == shape && r.rate > 0 && r.share > 0;
    });
  };
  const Backend backend = make_backend({.kind = deck::Backend::debug}, nullptr);
  const auto gemm = bench_gemm(backend, options);
  const auto attention = bench_attention(backend, options);
  for (const char* type : {"f32", "bf16"}) {
    for (const char* way : {"linear", "linear_dgrad", "linear_wgrad"}) {
      for (const char* shape : {"M 128 N 128 K 128", "M 256 N 256 K 256", "M 8 N 64 K 768"})
        EXPECT_EQ(count(gemm, fmt::format("{} {}", way, type), shape), 1) << way << shape;
    }
    for (const char* way : {"attention", "attention_backward"}) {
      for (const char* shape : {"B 1 H 12 T 8 D 64", "B 1 H 12 T 64 D 64", "B 1 H 12 T 8 x 8 D 64",
                                "B 1 H 12 T 64 D 64, encoder"})
        EXPECT_EQ(count(attention, fmt::format("{} {}", way, type), shape), 1) << way << shape;
    }
  }
  EXPECT_GT(gemm_rate(backend, DType::bf16, 32, options), 0);
}

TEST(Bench, MeasuresFp8ProductsWhereTheyHaveARateOfTheirOwn) {
  const BenchOptions options{
      .repeats = 1, .models = {{.vocab = 64, .samples = 1, .tokens = 16}}, .square = 128};
  Backend backend = make_backend({.kind = deck::Backend::cpu}, nullptr);
  const auto count = [&](std::string_view name) {
    const auto rows = bench_gemm(backend, options);
    return std::ranges::count_if(rows, [&](const BenchRow& r) { return r.name == name; });
  };
  EXPECT_EQ(count("linear fp8"), 0);
  backend.multiplies_fp8 = true;
  // The limit, a square, four matrices of a block and gelu within a product.
  EXPECT_EQ(count("linear fp8"), 1 + 1 + 4 + 1);
  EXPECT_EQ(count("linear_wgrad fp8"), 1 + 4);
  EXPECT_GT(gemm_rate(backend, DType::e4m3, 32, options), 0);
}

TEST(Bench, MeasuresMemory) {
  const Backend backend = make_backend({.kind = deck::Backend::cpu}, nullptr);
  EXPECT_GT(memory_rate(backend, {.repeats = 1, .elements = 4096}), 1e6);
  EXPECT_STREQ(memory_test(backend), "triad");
}

}  // namespace
}  // namespace tessera::backend
