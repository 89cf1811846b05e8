#include <limits>

#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

struct Row {
  double loss = 0, top = 0;
  Numbers probability;
};
Row softmax_row(const Tensor& logits, std::int64_t r, std::int64_t vocabulary, double target) {
  Row row;
  const std::int64_t first = r * logits.view().cols();
  row.top = -1e300;
  for (std::int64_t i = 0; i < vocabulary; ++i) row.top = std::max(row.top, logits[first + i]);
  double sum = 0;
  for (std::int64_t i = 0; i < vocabulary; ++i) {
    row.probability.push_back(std::exp(logits[first + i] - row.top));
    sum += row.probability.back();
  }
  for (double& p : row.probability) p /= sum;
  row.loss = std::log(sum) + row.top - logits[first + static_cast<std::int64_t>(target)];
  return row;
}

TEST(Classify, LossAndGradientAgreeWithDouble) {
  for_devices_and_types([](Device& device, DType type) {
    for (std::int64_t vocabulary : {1, 13, 64, 97, 5003}) {
      const std::int64_t rows = 7, padded = vocabulary + 5;
      const auto logits0 = Tensor::random(type, {rows, padded}, 1, 5, 2);
      const Tensor logits = logits0.copy();
      Tensor targets(DType::i32, {rows}), losses(DType::f32, {rows}), scale(DType::f32, {1});
      for (std::int64_t r = 0; r < rows; ++r) targets.set(r, r == 3 ? -1 : r * 7919 % vocabulary);
      scale.set(0, 0.125);
      Classify call{.logits = logits.view(),
                    .targets = targets.view(),
                    .losses = losses.view(),
                    .vocab = vocabulary};
      run(device, call);
      EXPECT_TRUE(logits.same_bits(logits0)) << "losses only";
      const Tensor losses_only = losses.copy();
      call.scale = scale.view();
      run(device, call);
      EXPECT_TRUE(losses.same_bits(losses_only));

      Numbers loss, gradient, loss_bound, bound;
      for (std::int64_t r = 0; r < rows; ++r) {
        if (targets[r] < 0) {  // ignored: exactly 0
          loss.push_back(0), loss_bound.push_back(0);
          gradient.insert(gradient.end(), static_cast<std::size_t>(padded), 0);
          bound.insert(bound.end(), static_cast<std::size_t>(padded), 0);
          continue;
        }
        const Row row = softmax_row(logits0, r, vocabulary, targets[r]);
        // x - max errs by u (|x| + |max|), e^x by 2 ulp more; lanes add at most 4096 / 16 terms.
        const double e =
            0x1p-24 * (2 * (std::abs(row.top) + 25) + 4 +
                       static_cast<double>(std::min<std::int64_t>(vocabulary, 4096)) / 16 + 5);
        loss.push_back(row.loss), loss_bound.push_back(e + 0x1p-23 * (1 + row.loss));
        for (std::int64_t i = 0; i < padded; ++i) {
          double g = 0, b = 0;
          if (i < vocabulary) {
            const double p = row.probability[static_cast<std::size_t>(i)];
            const double hit = static_cast<double>(i) == targets[r] ? 1 : 0;
            g = 0.125 * (p - hit);
            b = 0.125 * (2 * e * p + 0x1p-22 * hit) + write_error(type, g);
          }
          gradient.push_back(g), bound.push_back(b);
        }
      }
      expect_within(
          losses, loss, [&](std::int64_t i) { return loss_bound[static_cast<std::size_t>(i)]; },
          "losses");
      expect_within(
          logits, gradient, [&](std::int64_t i) { return bound[static_cast<std::size_t>(i)]; },
          "gradient");
    }
  });
}

TEST(Classify, GradientAgreesWithFiniteDifferences) {
  const auto device = make_cpu_device({.threads = 1});
  const std::int64_t vocabulary = 11;
  const auto logits0 = Tensor::random(DType::f32, {1, vocabulary}, 1, 2);
  const Tensor logits = logits0.copy();
  Tensor target(DType::i32, {1}), loss(DType::f32, {1}), scale(DType::f32, {1});
  target.set(0, 4), scale.set(0, 1);
  run(*device, Classify{.logits = logits.view(),
                        .targets = target.view(),
                        .losses = loss.view(),
                        .scale = scale.view(),
                        .vocab = vocabulary});
  const Numbers want = numeric_gradient(
      [&](const Numbers& x) {
        double sum = 0;
        for (double v : x) sum += std::exp(v);
        return std::log(sum) - x[4];
      },
      logits0.numbers());
  expect_within(
      logits, want, [](std::int64_t) { return 1e-6; }, "gradient");
}

TEST(Classify, LargeLogitsDoNotOverflowAndNansAreSeen) {
  const auto device = make_cpu_device({.threads = 1});
  Tensor logits(DType::f32, {2, 20}), targets(DType::i32, {2}), losses(DType::f32, {2});
  for (std::int64_t i = 0; i < 20; ++i) logits.set(i, 3e38), logits.set(20 + i, 1);
  logits.set(27, std::numeric_limits<double>::quiet_NaN());
  run(*device, Classify{.logits = logits.view(),
                        .targets = targets.view(),
                        .losses = losses.view(),
                        .vocab = 20});
  EXPECT_NEAR(losses[0], 0, 3e31);  // log 20 beside 3e38: cancelled, but finite
  EXPECT_TRUE(std::isnan(losses[1]));
}

}  // namespace
}  // namespace tessera::kernels::test
