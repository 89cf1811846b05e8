// Factors of tensors in 1-bit LAMB (Li et al. 2021, algorithm 1), against double.
#include "core/exact_sum.hpp"
#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

Tensor verdict_of(double apply, double coefficient) {
  Tensor verdict(DType::f32, {kVerdictFields});
  verdict.set(static_cast<std::int64_t>(VerdictField::apply), apply);
  verdict.set(static_cast<std::int64_t>(VerdictField::coefficient), coefficient);
  return verdict;
}

std::int64_t bits_of(double x) { return std::bit_cast<std::int32_t>(static_cast<float>(x)); }

TEST(MomentRatio, MovesMomentsAndFindsTheLargest) {
  for_devices([](Device& device) {
    for (const std::int64_t n : {1, 31, 257, 20011}) {
      const auto gradient = Tensor::random(DType::f32, {n}, 1);
      Tensor before = Tensor::random(DType::f32, {n}, 2),
             frozen = Tensor::random(DType::f32, {n}, 3);
      for (std::int64_t i = 0; i < n; ++i) {
        before.set(i, before[i] * before[i]);
        frozen.set(i, i % 7 == 3 ? 0 : frozen[i] * frozen[i]);
      }
      const Tensor verdict = verdict_of(1, 0.5), moment = before.copy(), largest(DType::i64, {1});
      const MomentRatio call{.gradient = gradient.view(),
                             .moment = moment.view(),
                             .frozen = frozen.view(),
                             .largest = largest.view(),
                             .verdict = verdict.view(),
                             .beta2 = 0.875F};
      run(device, call);
      float most = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        const double g = 0.5 * gradient[i], want = 0.875 * before[i] + 0.125 * g * g;
        ASSERT_NEAR(moment[i], want, 3 * 0x1p-24 * want);
        const auto a = static_cast<float>(frozen[i]), b = static_cast<float>(moment[i]);
        most = std::max(most, a > 0 ? a / b : 0);
      }
      EXPECT_EQ(*largest.view().as<std::int64_t>(), bits_of(most));
      // What is larger already stays; a step that is skipped, and elements that another rank
      // counts, change nothing there.
      *largest.view().as<std::int64_t>() = bits_of(1e30);
      run(device, call);
      EXPECT_EQ(*largest.view().as<std::int64_t>(), bits_of(1e30));
      *largest.view().as<std::int64_t>() = 0;
      const Tensor now = moment.copy(), skipped = verdict_of(0, 0.5);
      MomentRatio other = call;
      other.verdict = skipped.view();
      run(device, other);
      EXPECT_TRUE(moment.same_bits(now));
      other = call, other.largest = {};
      run(device, other);
      EXPECT_FALSE(moment.same_bits(now));
      EXPECT_EQ(*largest.view().as<std::int64_t>(), 0);
    }
  });
}

TEST(MomentRatio, IsInfiniteWhereAMomentIsGone) {
  for_devices([](Device& device) {
    const Tensor zero(DType::f32, {5}), moment(DType::f32, {5}), largest(DType::i64, {1}),
        verdict = verdict_of(1, 1);
    Tensor frozen(DType::f32, {5});
    frozen.set(2, 1e-3);
    run(device, MomentRatio{.gradient = zero.view(),
                            .moment = moment.view(),
                            .frozen = frozen.view(),
                            .largest = largest.view(),
                            .verdict = verdict.view()});
    EXPECT_EQ(*largest.view().as<std::int64_t>(), bits_of(std::numeric_limits<double>::infinity()));
  });
}

TEST(FollowRatio, GoesSlowlyAndNotFar) {
  struct Row {
    double before, largest, want;
  };
  // Threshold 1/8, from 1/2 to 4; before 0 is 1.
  const std::vector<Row> rows = {
      {0, 1, 1},         {0, 100, 1.125},
      {0, 0, 0.875},     {2, 2.125, 2.125},
      {2, 1, 1.75},      {3.75, 100, 4},
      {0.5, 0.125, 0.5}, {1, std::numeric_limits<double>::infinity(), 1.125}};
  for_devices([&](Device& device) {
    const auto n = std::ssize(rows);
    Tensor ratio(DType::f32, {n});
    const Tensor largest(DType::i64, {n});
    for (std::int64_t i = 0; i < n; ++i) {
      const Row& row = rows[static_cast<std::size_t>(i)];
      ratio.set(i, row.before);
      largest.view().as<std::int64_t>()[i] = bits_of(row.largest);
    }
    const Tensor before = ratio.copy(), skipped = verdict_of(0, 1), applied = verdict_of(1, 1);
    FollowRatio call{.largest = largest.view(),
                     .ratio = ratio.view(),
                     .verdict = skipped.view(),
                     .threshold = 0.125F,
                     .r_min = 0.5F,
                     .r_max = 4};
    run(device, call);
    EXPECT_TRUE(ratio.same_bits(before));
    call.verdict = applied.view();
    run(device, call);
    for (std::int64_t i = 0; i < n; ++i)
      EXPECT_EQ(ratio[i], rows[static_cast<std::size_t>(i)].want) << i;
  });
}

TEST(AverageTrust, IsOfClippedRatios) {
  for_devices([](Device& device) {
    const std::int64_t tensors = 3, n = 100;
    const Tensor sums(DType::i64, {tensors * kTensorWords});
    Tensor average(DType::f32, {tensors});
    std::vector<double> want;
    for (std::int64_t t = 0; t < tensors; ++t) {
      const double scales[] = {1, 100, 0};  // a ratio, one that is clipped, and none
      const auto x = Tensor::random(DType::f32, {n}, 1, scales[t]),
                 u = Tensor::random(DType::f32, {n}, 2);
      double norms[2] = {};
      for (const auto& [k, of] : {std::pair{0, &x}, std::pair{1, &u}}) {
        run(device, ExactSum{.x = of->view(),
                             .accumulator = sums.view().range(t * kTensorWords + k * kExactSumWords,
                                                              kExactSumWords)});
        for (std::int64_t i = 0; i < n; ++i) norms[k] += (*of)[i] * (*of)[i];
      }
      average.set(t, 0.25);
      const double c = norms[0] == 0 ? 1 : std::clamp(std::sqrt(norms[0] / norms[1]), 0.5, 8.0);
      want.push_back(0.75 * 0.25 + 0.25 * c);
    }
    const Tensor skipped = verdict_of(0, 1), applied = verdict_of(1, 1), before = average.copy();
    AverageTrust call{.sums = sums.view(),
                      .average = average.view(),
                      .verdict = skipped.view(),
                      .beta3 = 0.75F,
                      .trust_min = 0.5F,
                      .trust_max = 8};
    run(device, call);
    EXPECT_TRUE(average.same_bits(before));
    call.verdict = applied.view();
    run(device, call);
    for (std::int64_t t = 0; t < tensors; ++t) {
      const double expected = want[static_cast<std::size_t>(t)];
      EXPECT_NEAR(average[t], expected, 4 * 0x1p-24 * expected);
    }
  });
}

// The same bits as LAMB's second pass, whose ratio is clipped to the product of the factors here.
TEST(FrozenLamb, IsTheSecondPassByOtherFactors) {
  for_devices([](Device& device) {
    for (const std::int64_t n : {1, 33, 5003}) {
      const auto m = Tensor::random(DType::f32, {n}, 1),
                 weights = Tensor::random(DType::f32, {n}, 2);
      Tensor v = Tensor::random(DType::f32, {n}, 3), scalars(DType::f32, {kScalars});
      for (std::int64_t i = 0; i < n; ++i) v.set(i, v[i] * v[i]);
      scalars.set(static_cast<std::int64_t>(StepScalar::lr), 0.125);
      const Tensor verdict = verdict_of(1, 0.5), lamb = weights.copy(), frozen = weights.copy(),
                   sums(DType::i64, {kTensorWords});
      run(device,
          ExactSum{.x = weights.view(), .accumulator = sums.view().range(0, kExactSumWords)});
      run(device, ExactSum{.x = m.view(),
                           .accumulator = sums.view().range(kExactSumWords, kExactSumWords)});
      Tensor average(DType::f32, {1}), ratio(DType::f32, {1});
      average.set(0, 2), ratio.set(0, 1.5);
      OptimizerUpdate call{
          .rule = UpdateRule::lamb,
          .master = lamb.view(),
          .state = {m.view(), v.view()},
          .sums = sums.view(),
          .scalars = scalars.view(),
          .verdict = verdict.view(),
          .settings = {.eps = 1e-6F, .decay = 0.25F, .trust_min = 3, .trust_max = 3}};
      run(device, call);
      call.rule = UpdateRule::frozen_lamb, call.master = frozen.view(), call.sums = {};
      call.factors = {average.view(), ratio.view()};
      run(device, call);
      EXPECT_TRUE(frozen.same_bits(lamb));
      EXPECT_FALSE(frozen.same_bits(weights));
    }
  });
}

}  // namespace
}  // namespace tessera::kernels::test
