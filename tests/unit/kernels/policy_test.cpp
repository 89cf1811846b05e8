// Losses of tokens that the model drew, against their formula and finite differences.
#include <cmath>
#include <limits>

#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

/// What PolicyLoss says of a target, of -log p now, when it was drawn and under the reference.
double loss_of(const PolicyTerms& terms, double better, double now, double drawn,
               double reference) {
  const double ratio = std::exp(drawn - now), low = 1 - static_cast<double>(terms.low),
               high = 1 + static_cast<double>(terms.high), q = now - reference;
  return -std::min(ratio * better, std::clamp(ratio, low, high) * better) +
         static_cast<double>(terms.kl) * (std::exp(q) - q - 1);
}

/// Targets of which every third does not count, and what is known of them.
struct Targets {
  explicit Targets(std::int64_t n)
      : losses(DType::f32, {n}),
        targets(DType::i32, {n}),
        advantages(Tensor::random(DType::f32, {n}, 3, 2)),
        weights(DType::f32, {n}),
        drawn(DType::f32, {n}),
        reference(DType::f32, {n}),
        scale(DType::f32, {1}),
        out(DType::f32, {n}),
        slopes(DType::f32, {n}),
        statistics(DType::f32, {kPolicyStats, n}) {
    for (std::int64_t i = 0; i < n; ++i) {
      const bool counts = i % 3 != 1;
      targets.set(i, counts ? i % 50 : -1);
      losses.set(i, counts ? 0.01 * static_cast<double>(i % 700) : 0);
      // Ratios from e^-0.7 to e^0.7: well below, within and well above what clips them.
      weights.set(i, 0.25 * static_cast<double>(1 + i % 8));
      drawn.set(i, losses[i] + 0.1 * static_cast<double>(i % 15 - 7) + 0.01);
      reference.set(i, losses[i] + 0.2 * static_cast<double>(i % 11 - 5));
    }
    scale.set(0, 32);
  }
  PolicyLoss call(const PolicyTerms& terms, bool before) const {
    return {.target_losses = losses.view(),
            .targets = targets.view(),
            .advantages = advantages.view(),
            .weights = before ? weights.view() : View{},
            .drawn = before ? drawn.view() : View{},
            .reference = terms.kl > 0 ? reference.view() : View{},
            .scale = scale.view(),
            .losses = out.view(),
            .slopes = slopes.view(),
            .statistics = before ? statistics.view() : View{},
            .terms = terms};
  }
  Tensor losses, targets, advantages, weights, drawn, reference, scale, out, slopes, statistics;
};

TEST(PolicyLoss, LossesAndSlopesAgreeWithTheFormula) {
  for_devices([](Device& device) {
    for (const PolicyTerms& terms : {PolicyTerms{}, PolicyTerms{.low = 0.2F, .high = 0.3F},
                                     PolicyTerms{.low = 0.1F, .high = 0.2F, .kl = 0.5F}}) {
      for (const bool before : {false, true}) {
        for (const std::int64_t n : {1, 17, 9000}) {
          const Targets x(n);
          run(device, x.call(terms, before));
          Numbers want, slopes;
          for (std::int64_t i = 0; i < n; ++i) {
            const double now = x.losses[i], step = 1e-6;
            const auto loss = [&](double at) {
              return (before ? x.weights[i] : 1) *
                     loss_of(terms, x.advantages[i], at, before ? x.drawn[i] : now, x.reference[i]);
            };
            const bool counts = x.targets[i] >= 0;
            want.push_back(counts ? loss(now) : 0);
            // Without clipping at the point itself: by the side on which the model moves freely.
            slopes.push_back(counts ? 32 * (loss(now + step) - loss(now - step)) / (2 * step) : 0);
            if (counts && !before && terms.low == 0) {
              slopes.back() = 32 * (x.advantages[i] + static_cast<double>(terms.kl) *
                                                          std::expm1(now - x.reference[i]));
            }
          }
          for (std::int64_t i = 0; before && i < n; ++i) {
            // No ratio is within a rounding of where it is clipped.
            const bool counts = x.targets[i] >= 0;
            const double ratio = std::exp(x.drawn[i] - x.losses[i]), better = x.advantages[i];
            const bool held = better > 0 ? ratio > 1 + static_cast<double>(terms.high)
                                         : ratio < 1 - static_cast<double>(terms.low);
            ASSERT_EQ(x.statistics[i], counts && held && better != 0 ? 1 : 0) << i;
            ASSERT_EQ(x.statistics[n + i],
                      counts ? static_cast<float>(x.losses[i] - x.drawn[i]) : 0)
                << i;
          }
          // Computed in double, of terms below 8, and rounded once.
          expect_within(
              x.out, want,
              [&](std::int64_t i) {
                return 0x1p-24 * std::abs(want[static_cast<std::size_t>(i)]) + 64 * 0x1p-53;
              },
              "losses");
          // Central differences err by step^2 / 6 times a third derivative below 8, and by the
          // rounding of losses below 8 over the step; all that times 32.
          expect_within(
              x.slopes, slopes,
              [&](std::int64_t i) {
                return 0x1p-24 * std::abs(slopes[static_cast<std::size_t>(i)]) +
                       32 * (2e-12 + 8 * 2 * 0x1p-53 / 1e-6);
              },
              "slopes");
        }
      }
    }
  });
}

// A model whose logits are not finite must not seem to have a loss.
TEST(PolicyLoss, IsNotFiniteWhereLogPIsNot) {
  for_devices([](Device& device) {
    for (const bool before : {false, true}) {
      Targets x(3);
      x.targets.set(1, 5);
      x.losses.set(0, std::nan(""));
      x.losses.set(1, std::numeric_limits<double>::infinity());
      x.losses.set(2, std::nan("")), x.targets.set(2, -1);
      run(device, x.call({}, before));
      EXPECT_TRUE(std::isnan(x.out[0]));
      EXPECT_TRUE(std::isnan(x.out[1]));
      EXPECT_EQ(x.out[2], 0) << "it does not count";
    }
  });
}

/// What ValueLoss says of a value, of which `then` was that when the target was drawn.
double loss_of(const ValueTerms& terms, double value, double wanted, const double* then) {
  const double weight = static_cast<double>(terms.weight), most = static_cast<double>(terms.clip);
  double off = (value - wanted) * (value - wanted);
  if (then != nullptr) {
    const double clipped = std::clamp(value, *then - most, *then + most) - wanted;
    off = std::max(off, clipped * clipped);
  }
  return weight / 2 * off;
}

// Each number is rounded to f32 once; slopes against differences of the formula, which is of second
// order: exact but for where the clip begins, which no value is within a step of.
TEST(ValueLoss, LossesAndSlopesAgreeWithTheFormula) {
  for_devices([](Device& device) {
    const std::int64_t n = 70;
    const Targets t(n);
    const ValueTerms terms{.weight = 0.7F, .clip = 0.25F};
    Tensor values(DType::f32, {n}), then(DType::f32, {n});
    const auto returns = Tensor::random(DType::f32, {n}, 5);
    for (std::int64_t i = 0; i < n; ++i) {
      then.set(i, 0.1 * static_cast<double>(i % 13 - 6));
      values.set(i, then[i] + 0.1 * static_cast<double>(i % 9 - 4) + 0.013);
    }
    for (const bool before : {false, true}) {
      const auto others = Tensor::random(DType::f32, {n}, 6);
      Tensor losses = others.copy(), slopes(DType::f32, {n});
      run(device, ValueLoss{.values = values.view(),
                            .targets = t.targets.view(),
                            .returns = returns.view(),
                            .weights = before ? t.weights.view() : View{},
                            .drawn = before ? then.view() : View{},
                            .scale = t.scale.view(),
                            .losses = losses.view(),
                            .slopes = slopes.view(),
                            .terms = terms});
      std::int64_t held = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        if (t.targets[i] < 0) {
          EXPECT_EQ(losses[i], others[i]);
          EXPECT_EQ(slopes[i], 0);
          continue;
        }
        const double was = then[i], weight = before ? t.weights[i] : 1, step = 1e-4;
        const auto at = [&](double value) {
          return weight * loss_of(terms, value, returns[i], before ? &was : nullptr);
        };
        EXPECT_NEAR(losses[i], others[i] + at(values[i]), 0x1p-23 * (std::abs(others[i]) + 8)) << i;
        const double slope = (at(values[i] + step) - at(values[i] - step)) / (2 * step);
        EXPECT_NEAR(slopes[i], 32 * slope, 32 * 1e-6 * (1 + std::abs(slope))) << i;
        held += slope == 0 ? 1 : 0;
      }
      EXPECT_EQ(held > 0, before);
    }
  });
}

}  // namespace
}  // namespace tessera::kernels::test
