// What makes matrices orthogonal, and Muon's passes before and after that, against double.
#include "kernels/api/orthogonal.hpp"

#include "core/exact_sum.hpp"
#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

TEST(DivideByNorm, DividesByTheNormOrEps) {
  for_devices_and_types([](Device& device, DType type) {
    for (DType to : kTypes) {
      for (const double scale : {2.0, 0.0}) {
        const std::int64_t n = 1003;
        const auto x = Tensor::random(type, {n}, 1, scale);
        const Tensor squares(DType::i64, {kExactSumWords}), out(to, {n});
        run(device, ExactSum{.x = x.view(), .accumulator = squares.view()});
        run(device, DivideByNorm{.x = x.view(), .squares = squares.view(), .out = out.view()});
        double sum = 0;
        for (std::int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
        for (std::int64_t i = 0; i < n; ++i) {
          const double want = x[i] / std::max(std::sqrt(sum), 1e-7);
          // The factor and its product are rounded to f32, the result to its type.
          ASSERT_NEAR(out[i], want, 3 * 0x1p-24 * std::abs(want) + write_error(to, want));
        }
      }
    }
  });
}

TEST(SquarePolynomial, IsOfTheMatrixAndItsSquare) {
  for_devices_and_types([](Device& device, DType type) {
    for (const std::int64_t n : {1, 7, 64, 131}) {
      const auto x = Tensor::random(type, {n, n}, 1), square = Tensor::random(type, {n, n}, 2);
      const Tensor apart(type, {n, n}), in_place = x.copy();
      const std::array c = {3.5F, -4.75F, 2.25F};
      run(device,
          SquarePolynomial{
              .x = x.view(), .square = square.view(), .out = apart.view(), .coefficients = c});
      run(device, SquarePolynomial{.x = in_place.view(),
                                   .square = square.view(),
                                   .out = in_place.view(),
                                   .coefficients = c});
      EXPECT_TRUE(apart.same_bits(in_place));
      for (std::int64_t i = 0; i < n * n; ++i) {
        const double one = i / n == i % n ? 3.5 : 0, want = one - 4.75 * x[i] + 2.25 * square[i];
        const double terms = one + std::abs(4.75 * x[i]) + std::abs(2.25 * square[i]);
        ASSERT_NEAR(apart[i], want, 3 * 0x1p-24 * terms + write_error(type, want));
      }
    }
  });
}

TEST(Convert, TakesMatricesOutOfOthers) {
  for_devices_and_types([](Device& device, DType type) {
    const auto x = Tensor::random(type, {37, 21}, 1, 1, 5);
    for (DType to : kTypes) {
      const Tensor out(to, {37, 21}, 11), dense(to, {37, 21});
      Tensor want(to, {37, 21});
      run(device, Convert{.x = x.view(), .out = out.view()});
      run(device, Convert{.x = out.view(), .out = dense.view()});
      for (std::int64_t i = 0; i < out.size(); ++i) want.set(i, x[i]);
      EXPECT_TRUE(dense.same_bits(want));
      EXPECT_TRUE(out.gaps_intact());
    }
  });
}

TEST(MuonPasses, FollowTheirFormulas) {
  for_devices_and_types([](Device& device, DType type) {
    for (const bool nesterov : {true, false}) {
      for (const std::int64_t n : {1, 17, 10007}) {
        const auto gradient = Tensor::random(type, {n}, 1),
                   weights = Tensor::random(DType::f32, {n}, 2),
                   moment = Tensor::random(DType::f32, {n}, 3);
        Tensor scalars(DType::f32, {kScalars}), verdict(DType::f32, {kVerdictFields});
        scalars.set(static_cast<std::int64_t>(StepScalar::lr), 0.125);
        const double lr = 0.0625, beta = 0.75, decay = 0.25;
        for (const double apply : {0.0, 1.0}) {
          verdict.set(static_cast<std::int64_t>(VerdictField::apply), apply);
          verdict.set(static_cast<std::int64_t>(VerdictField::coefficient), 0.5);
          const Tensor m = moment.copy(), master = weights.copy(),
                       direction = Tensor::random(type, {n}, 4), parameter(type, {n});
          OptimizerUpdate call{
              .rule = UpdateRule::muon_moment,
              .gradient = gradient.view(),
              .master = master.view(),
              .state = {m.view()},
              .direction = direction.view(),
              .scalars = scalars.view(),
              .verdict = verdict.view(),
              .settings = {
                  .beta1 = 0.75F, .decay = 0.25F, .lr_factor = 0.5F, .nesterov = nesterov}};
          run(device, call);
          EXPECT_TRUE(master.same_bits(weights));
          const Tensor made = direction.copy();
          call.rule = UpdateRule::muon;
          call.gradient = {}, call.state = {}, call.parameter = parameter.view();
          run(device, call);
          for (std::int64_t i = 0; i < n; ++i) {
            const double g = 0.5 * gradient[i], size = std::abs(g) + std::abs(moment[i]);
            const double new_m = apply == 0 ? moment[i] : moment[i] + (1 - beta) * (g - moment[i]);
            const double along = apply == 0 ? 0 : nesterov ? g + beta * (new_m - g) : new_m;
            const double want =
                apply == 0 ? weights[i] : weights[i] * (1 - lr * decay) - lr * made[i];
            ASSERT_NEAR(m[i], new_m, 4 * 0x1p-24 * size);
            ASSERT_NEAR(made[i], along, 6 * 0x1p-24 * size + write_error(type, along));
            ASSERT_NEAR(master[i], want, 4 * 0x1p-24 * (std::abs(weights[i]) + std::abs(made[i])));
            ASSERT_NEAR(parameter[i], master[i], write_error(type, master[i]));
          }
        }
        // Of padding: a direction of 0.
        const Tensor master = weights.copy();
        run(device, OptimizerUpdate{.rule = UpdateRule::muon,
                                    .master = master.view(),
                                    .scalars = scalars.view(),
                                    .verdict = verdict.view(),
                                    .settings = {.decay = 0.25F, .lr_factor = 0.5F}});
        for (std::int64_t i = 0; i < n; ++i)
          ASSERT_NEAR(master[i], weights[i] * (1 - lr * decay), 0x1p-23 * std::abs(weights[i]));
      }
    }
  });
}

}  // namespace
}  // namespace tessera::kernels::test
