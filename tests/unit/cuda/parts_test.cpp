// What own kernels do behind a product is what the product does without them, on the emulated
// library and on a GPU's.
#include <gtest/gtest.h>

#include "kernels/cuda/scratch.hpp"
#include "tests/gpu/device.hpp"

namespace tessera::kernels::test {
namespace {

using cuda::Gemm;
using cuda::GemmKey;

constexpr std::int64_t kRows = 24, kIn = 16, kOut = 40;

/// A product's operands, and what it writes.
class Parts : public testing::Test {
 protected:
  void SetUp() override {
    unsigned seed = 1;
    for (DeviceTensor* t : {&x_, &weight_, &bias_, &before_})
      t->write(normal_numbers(t->view().elements(), seed++, t == &weight_ ? 0.25 : 1));
  }

  template <typename Call>
  Gemm gemm(const Call& call) const {
    return gemm_of(call, gpu_.rules);
  }
  /// What the product writes, and for a way forward the preactivation.
  Floats written(const Gemm& product) const {
    Floats all = y_.numbers();
    if (product.key.epilogue == cuda::Epilogue::gelu_slope) return all;
    const Floats before = before_.numbers();
    all.insert(all.end(), before.begin(), before.end());
    return all;
  }
  void multiply(const Gemm& product) {
    gpu_.libraries().matmul.run(product, product.key.bias ? bias_.view().data : nullptr,
                                workspace_.view());
  }
  /// Of numbers of ordinary size what is written on the way is rounded by 2^-8 of them, once or
  /// twice, and a library's gelu may be off by some 2^-7 of a sum.
  void expect_parts_agree(const Gemm& whole) {
    SCOPED_TRACE(text_of(whole.key));
    ASSERT_FALSE(is_plain(whole.key));
    if (!gpu_.libraries().matmul.takes(whole.key)) GTEST_SKIP() << "cuBLASLt refuses it";
    y_.forget(), multiply(whole);
    const Floats want = written(whole);
    y_.forget(), multiply(without_last(whole));
    gpu_.own_kernels()(whole, bias_.view().data);
    const Floats got = written(whole);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_LE(std::abs(want[i]), 10) << i;
      EXPECT_NEAR(got[i], want[i], 0x1p-8F * (12 + 4 * std::abs(want[i]))) << i;
    }
  }

  GpuRank gpu_;
  DeviceTensor x_{DType::bf16, {kRows, kIn}}, weight_{DType::bf16, {kOut, kIn}},
      bias_{DType::bf16, {kOut}}, y_{DType::bf16, {kRows, kOut}},
      before_{DType::bf16, {kRows, kOut}}, workspace_{DType::u8, {cuda::kMatmulWorkspace}};
};

TEST_F(Parts, AddTheBias) {
  const Linear call{.x = x_.view(), .weight = weight_.view(), .bias = bias_.view(), .y = y_.view()};
  expect_parts_agree(gemm(call));
}

TEST_F(Parts, ApplyGelu) {
  Linear call{
      .x = x_.view(), .weight = weight_.view(), .y = y_.view(), .preactivation = before_.view()};
  expect_parts_agree(gemm(call));
  call.bias = bias_.view();
  expect_parts_agree(gemm(call));
}

TEST_F(Parts, MultiplyByGelusSlope) {
  const LinearBackwardInput call{.d_y = x_.view(),
                                 .weight = weight_.view().reshaped({kIn, kOut}),
                                 .d_x = y_.view(),
                                 .preactivation = before_.view()};
  expect_parts_agree(gemm(call));
}

}  // namespace
}  // namespace tessera::kernels::test
