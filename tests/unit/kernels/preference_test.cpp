// Losses of pairs of answers against double, and their slopes against finite differences.
#include <cmath>

#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

/// A pair's loss as its paper has it.
double loss_of_pair(const PreferenceTerms& terms, double h) {
  const double b = terms.beta, s = terms.label_smoothing;
  const auto log_sigmoid = [](double x) { return -std::log1p(std::exp(-x)); };
  if (terms.kind == PreferenceKind::ipo) return (h - 1 / (2 * b)) * (h - 1 / (2 * b));
  return -(1 - s) * log_sigmoid(b * h) - s * log_sigmoid(-b * h);
}

const std::vector<PreferenceTerms> kTerms = {{PreferenceKind::dpo, 0.1F, 0},
                                             {PreferenceKind::dpo, 0.5F, 0.2F},
                                             {PreferenceKind::ipo, 0.25F, 0},
                                             {PreferenceKind::reward, 1, 0.1F}};

/// Pairs whose last one does not count; of the others every third target does not.
struct Pairs {
  Pairs(std::int64_t pairs, std::int64_t tokens)
      : losses(Tensor::random(DType::f32, {2 * pairs, tokens}, 3, 2)),
        targets(DType::i32, {2 * pairs * tokens}),
        reference(DType::f64, {2 * pairs}) {
    for (std::int64_t i = 0; i < losses.size(); ++i) {
      const bool counts = i % 3 != 1 && i / tokens < 2 * pairs - 2;
      targets.set(i, counts ? i % 50 : -1);
      losses.set(i, counts ? std::abs(losses[i]) : 0);
    }
    for (std::int64_t s = 0; s < 2 * pairs; ++s)
      reference.view().as<double>()[s] = -1.1 * static_cast<double>(tokens) + 0.37 * (s % 5);
  }
  /// The reward of a sample, without b.
  double reward(const PreferenceTerms& terms, std::int64_t sample) const {
    const std::int64_t tokens = losses.view().cols();
    double sum = 0;
    for (std::int64_t t = 0; t < tokens; ++t) sum -= losses[sample * tokens + t];
    return terms.relative() ? sum - reference.view().as<double>()[sample] : sum;
  }
  Tensor losses, targets, reference;
};

TEST(PreferenceLoss, LossesStatisticsAndSlopesAgreeWithDouble) {
  for_devices([](Device& device) {
    for (const PreferenceTerms& terms : kTerms) {
      for (const auto& [pairs, tokens] : {std::pair{2, 1}, std::pair{3, 17}, std::pair{5, 700}}) {
        const Pairs x(pairs, tokens);
        Tensor losses(DType::f32, {2 * pairs}), slopes(DType::f32, {2 * pairs * tokens}),
            statistics(DType::f32, {kPreferenceStats * pairs}), scale(DType::f32, {1});
        scale.set(0, 32);
        PreferenceLoss call{.target_losses = x.losses.view(),
                            .targets = x.targets.view(),
                            .reference = terms.relative() ? x.reference.view() : View{},
                            .losses = losses.view(),
                            .statistics = statistics.view(),
                            .terms = terms};
        run(device, call);
        const Tensor alone = losses.copy();
        call.scale = scale.view(), call.slopes = slopes.view();
        run(device, call);
        EXPECT_TRUE(losses.same_bits(alone));

        Numbers want_losses, want_slopes, chosen, rejected, right;
        for (std::int64_t p = 0; p < pairs; ++p) {
          const bool counts = p + 1 < pairs;
          const double a = counts ? x.reward(terms, 2 * p) : 0,
                       b = counts ? x.reward(terms, 2 * p + 1) : 0, step = 1e-5;
          want_losses.push_back(counts ? loss_of_pair(terms, a - b) : 0);
          want_losses.push_back(0);
          chosen.push_back(a), rejected.push_back(b), right.push_back(a > b ? 1 : 0);
          const double slope =
              counts ? (loss_of_pair(terms, a - b + step) - loss_of_pair(terms, a - b - step)) /
                           (2 * step)
                     : 0;
          for (const double sign : {-1.0, 1.0})
            want_slopes.insert(want_slopes.end(), static_cast<std::size_t>(tokens),
                               32 * sign * slope);
        }
        Numbers want = chosen;
        want.insert(want.end(), rejected.begin(), rejected.end());
        want.insert(want.end(), right.begin(), right.end());
        // Sums are in double, whose rounding, of up to 1400 terms, is far below that of the result;
        // terms have no more than f32's digits in any case.
        const auto rounded = [](const Numbers& w) {
          return [&w](std::int64_t i) {
            return 0x1p-23 * std::abs(w[static_cast<std::size_t>(i)]) + 1e-9;
          };
        };
        expect_within(losses, want_losses, rounded(want_losses), "losses");
        expect_within(statistics, want, rounded(want), "statistics");
        // Central differences err by step^2 / 6 times a third derivative below 1, and by the
        // rounding of losses up to 1e6 (of ipo) over the step; all that times 32.
        expect_within(
            slopes, want_slopes,
            [&](std::int64_t i) {
              const double of_loss =
                  1 + std::abs(want_losses[static_cast<std::size_t>(i / tokens - i / tokens % 2)]);
              return 0x1p-22 * std::abs(want_slopes[static_cast<std::size_t>(i)]) +
                     32 * (1e-9 + 4 * 0x1p-53 * of_loss / 1e-5);
            },
            "slopes");
      }
    }
  });
}

// exp(-b h) overflows where the loss is still a number.
TEST(PreferenceLoss, FarFromTheReferenceLossesAreFinite) {
  for_devices([](Device& device) {
    Tensor target_losses(DType::f32, {4, 1}), targets(DType::i32, {4}), reference(DType::f64, {4}),
        losses(DType::f32, {4}), slopes(DType::f32, {4}), scale(DType::f32, {1}),
        statistics(DType::f32, {kPreferenceStats * 2});
    target_losses.set(0, 1e5), target_losses.set(3, 1e5);  // the wrong one, and the right one
    scale.set(0, 1);
    run(device, PreferenceLoss{.target_losses = target_losses.view(),
                               .targets = targets.view(),
                               .reference = reference.view(),
                               .scale = scale.view(),
                               .losses = losses.view(),
                               .slopes = slopes.view(),
                               .statistics = statistics.view(),
                               .terms = {PreferenceKind::dpo, 0.5F, 0}});
    EXPECT_EQ(losses.numbers(), (Numbers{5e4, 0, 0, 0}));
    EXPECT_EQ(slopes.numbers(), (Numbers{0.5, -0.5, 0, 0}));
    EXPECT_EQ(statistics.numbers(), (Numbers{-1e5, 0, 0, -1e5, 0, 1}));
  });
}

TEST(PreferenceLoss, RowsOfGradientsHaveTheirOwnScales) {
  for_devices_and_types([](Device& device, DType type) {
    const std::int64_t rows = 5, vocabulary = 37;
    const Tensor logits = Tensor::random(type, {rows, vocabulary}, 2, 2);
    Tensor targets(DType::i32, {rows}), lse(DType::f32, {rows}), scales(DType::f32, {rows}),
        one(DType::f32, {1});
    for (std::int64_t r = 0; r < rows; ++r)
      targets.set(r, r * 7), lse.set(r, 4), scales.set(r, 0.25 * static_cast<double>(r) - 0.5);
    const Tensor together = logits.copy();
    ClassifyGradient call{.logits = together.view(),
                          .targets = targets.view(),
                          .lse = lse.view(),
                          .scale = scales.view(),
                          .vocab = vocabulary};
    run(device, call);
    for (std::int64_t r = 0; r < rows; ++r) {
      const Tensor alone = logits.copy();
      one.set(0, scales[r]);
      call.logits = alone.view(), call.scale = one.view();
      run(device, call);
      for (std::int64_t i = r * vocabulary; i < (r + 1) * vocabulary; ++i)
        EXPECT_EQ(together[i], alone[i]) << "row " << r;
    }
  });
}

// A sample that does not count has no score; outputs beyond the first have no gradient.
TEST(Score, IsTheFirstOutputAndSoIsItsGradient) {
  for_devices_and_types([](Device& device, DType type) {
    const std::int64_t rows = 7, outputs = 8;
    const Tensor logits = Tensor::random(type, {rows, outputs}, 4, 3);
    Tensor targets(DType::i32, {rows}), losses(DType::f32, {rows}), slopes(DType::f32, {rows});
    targets.set(3, -1), targets.set(6, -1);
    for (std::int64_t r = 0; r < rows; ++r) slopes.set(r, 0.25 * static_cast<double>(r) - 0.5);
    run(device, Score{.logits = logits.view(), .targets = targets.view(), .losses = losses.view()});
    Numbers want, gradient;
    for (std::int64_t r = 0; r < rows; ++r) {
      want.push_back(targets[r] < 0 ? 0 : -logits[r * outputs]);
      for (std::int64_t i = 0; i < outputs; ++i) gradient.push_back(i == 0 ? -slopes[r] : 0);
    }
    EXPECT_EQ(losses.numbers(), want);
    run(device, ScoreGradient{.slopes = slopes.view(), .logits = logits.view()});
    EXPECT_EQ(logits.numbers(), gradient);
  });
}

TEST(PreferenceLoss, RefusesWhatIsNoTerm) {
  const auto device = make_cpu_device({.threads = 1, .isa = Isa::baseline});
  const Pairs x(2, 3);
  Tensor losses(DType::f32, {4}), statistics(DType::f32, {kPreferenceStats * 2});
  for (const PreferenceTerms& terms :
       {PreferenceTerms{}, PreferenceTerms{PreferenceKind::dpo, 0, 0},
        PreferenceTerms{PreferenceKind::dpo, 1, 0.5F},
        PreferenceTerms{PreferenceKind::reward, 1, 0}}) {  // beside a reference
    EXPECT_THROW(run(*device, PreferenceLoss{.target_losses = x.losses.view(),
                                             .targets = x.targets.view(),
                                             .reference = x.reference.view(),
                                             .losses = losses.view(),
                                             .statistics = statistics.view(),
                                             .terms = terms}),
                 InternalError);
  }
}

}  // namespace
}  // namespace tessera::kernels::test
