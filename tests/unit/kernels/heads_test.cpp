#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

struct Case {
  std::int64_t rows, heads, own, shared, gap;
};
const std::vector<Case> kCases = {
    {5, 1, 1, 1, 0}, {7, 3, 6, 4, 3}, {64, 4, 16, 8, 0}, {9, 2, 17, 34, 5}};

TEST(JoinHeads, PutsWhatHeadsShareBehindTheirOwnColumns) {
  for_devices_and_types([](Device& device, DType type) {
    for (const Case& c : kCases) {
      const std::int64_t all = c.own + c.shared;
      const auto own = Tensor::random(type, {1, c.rows, c.heads * c.own}, 1, 1, c.gap),
                 shared = Tensor::random(type, {1, c.rows, c.shared}, 2, 1, c.gap);
      const Tensor out(type, {1, c.rows, c.heads * all}, c.gap);
      run(device,
          JoinHeads{
              .own = own.view(), .shared = shared.view(), .out = out.view(), .heads = c.heads});
      for (std::int64_t i = 0; i < out.size(); ++i) {
        const std::int64_t row = i / (c.heads * all), head = i / all % c.heads, column = i % all;
        ASSERT_EQ(out[i], column < c.own ? own[(row * c.heads + head) * c.own + column]
                                         : shared[row * c.shared + column - c.own])
            << i;
      }
      EXPECT_TRUE(out.gaps_intact());
    }
  });
}

// In f32 whatever the operands' type, one head after another.
TEST(SplitHeads, AddsWhatHeadsShareUp) {
  for_devices_and_types([](Device& device, DType type) {
    for (const DType sums : {type, DType::f32}) {
      for (const Case& c : kCases) {
        const std::int64_t all = c.own + c.shared;
        const auto d = Tensor::random(type, {1, c.rows, c.heads * all}, 1, 1, c.gap);
        const Tensor own(type, {1, c.rows, c.heads * c.own}, c.gap),
            shared(sums, {1, c.rows, c.shared}, c.gap);
        run(device,
            SplitHeads{
                .d = d.view(), .d_own = own.view(), .d_shared = shared.view(), .heads = c.heads});
        Tensor want(sums, {1, c.rows, c.shared});
        for (std::int64_t row = 0; row < c.rows; ++row) {
          for (std::int64_t column = 0; column < c.shared; ++column) {
            float sum = 0;
            for (std::int64_t h = 0; h < c.heads; ++h)
              sum += static_cast<float>(d[(row * c.heads + h) * all + c.own + column]);
            want.set(row * c.shared + column, sum);
          }
        }
        for (std::int64_t i = 0; i < shared.size(); ++i) ASSERT_EQ(shared[i], want[i]) << i;
        for (std::int64_t i = 0; i < own.size(); ++i) {
          const std::int64_t row = i / (c.heads * c.own), head = i / c.own % c.heads;
          ASSERT_EQ(own[i], d[(row * c.heads + head) * all + i % c.own]) << i;
        }
        EXPECT_TRUE(own.gaps_intact() && shared.gaps_intact());
      }
    }
  });
}

TEST(JoinHeads, RefusesColumnsThatDoNotFit) {
  const auto device = make_cpu_device({});
  const Tensor own(DType::f32, {4, 6}), shared(DType::f32, {4, 2}), out(DType::f32, {4, 11});
  EXPECT_THROW(
      run(*device,
          JoinHeads{.own = own.view(), .shared = shared.view(), .out = out.view(), .heads = 2}),
      InternalError);
  EXPECT_THROW(
      run(*device,
          SplitHeads{.d = out.view(), .d_own = own.view(), .d_shared = shared.view(), .heads = 4}),
      InternalError);
}

}  // namespace
}  // namespace tessera::kernels::test
