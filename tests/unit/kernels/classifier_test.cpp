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

/// e^(x - y) errs, beside what e^x does, by so many times u |x - y|: the difference is rounded. For
/// 16-bit types a GPU multiplies it with log2 e, which is off by 0.22 u of itself, and rounds
/// again.
double exponent_error(DType type) { return type == DType::f32 ? 1 : 2.22; }

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
        // x - max errs by u (|x| + |max|), e^x by 2 ulp more; pieces of 4096 are added in double.
        // (A GPU's thread has its sum rescaled at every run instead: five roundings each, and fewer
        // than 4096 / 16 in all up to 50000 tokens.)
        const double e = 0x1p-24 * ((1 + exponent_error(type)) * (std::abs(row.top) + 25) + 4 +
                                    sum_depth(std::min<std::int64_t>(vocabulary, 4096)));
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

// Ties go to the first; a target below 0 counts nowhere, and padding never wins.
TEST(Confusion, CountsTargetsAndPredictions) {
  for_devices_and_types([](Device& device, DType type) {
    const std::int64_t classes = 3, rows = 300;
    auto logits = Tensor::random(type, {rows, classes + 2}, 1, 2, 1);
    logits.set(0, 4), logits.set(1, 4), logits.set(3, 100);
    Tensor targets(DType::i32, {rows}), counts(DType::i64, {classes, classes});
    std::vector<double> want(static_cast<std::size_t>(classes * classes), 2);  // it adds to these
    for (std::int64_t i = 0; i < classes * classes; ++i) counts.set(i, 2);
    for (std::int64_t r = 0; r < rows; ++r) {
      targets.set(r, r % 4 - 1);
      std::int64_t best = 0;
      for (std::int64_t c = 1; c < classes; ++c) {
        if (logits[r * (classes + 2) + c] > logits[r * (classes + 2) + best]) best = c;
      }
      if (r % 4 > 0) ++want[static_cast<std::size_t>((r % 4 - 1) * classes + best)];
    }
    run(device,
        Confusion{.logits = logits.view(), .targets = targets.view(), .counts = counts.view()});
    EXPECT_EQ(counts.numbers(), want);
  });
}

TEST(Classify, GradientAgreesWithFiniteDifferences) {
  for_devices([](Device& device) {
    const std::int64_t vocabulary = 11;
    const auto logits0 = Tensor::random(DType::f32, {1, vocabulary}, 1, 2);
    const Tensor logits = logits0.copy();
    Tensor target(DType::i32, {1}), loss(DType::f32, {1}), scale(DType::f32, {1});
    target.set(0, 4), scale.set(0, 1);
    run(device, Classify{.logits = logits.view(),
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
  });
}

TEST(Classify, LargeLogitsDoNotOverflowAndNansAreSeen) {
  for_devices([](Device& device) {
    Tensor logits(DType::f32, {2, 20}), targets(DType::i32, {2}), losses(DType::f32, {2});
    for (std::int64_t i = 0; i < 20; ++i) logits.set(i, 3e38), logits.set(20 + i, 1);
    logits.set(27, std::numeric_limits<double>::quiet_NaN());
    run(device, Classify{.logits = logits.view(),
                         .targets = targets.view(),
                         .losses = losses.view(),
                         .vocab = 20});
    EXPECT_NEAR(losses[0], 0, 3e31);  // log 20 beside 3e38: cancelled, but finite
    EXPECT_TRUE(std::isnan(losses[1]));
  });
}

/// Loss, lse and gradient by parts of the vocabulary: columns [cuts[i], cuts[i + 1]) each.
struct ByParts {
  Tensor gradient, stats, losses, lse;
};
ByParts classify_parts(Device& device, const Tensor& logits, const Tensor& targets,
                       const Tensor& scale, std::int64_t vocabulary,
                       const std::vector<std::int64_t>& cuts, float soft_cap = 0,
                       const LossTerms& terms = {}) {
  const std::int64_t rows = logits.view().extent(0);
  const auto parts = static_cast<std::int64_t>(cuts.size()) - 1;
  ByParts all{.gradient = logits.copy(),
              .stats = Tensor(DType::f32, {parts, rows, kPartStats}),
              .losses = Tensor(DType::f32, {rows}),
              .lse = Tensor(DType::f32, {rows})};
  const auto part_of = [&](std::int64_t i) {
    const auto j = static_cast<std::size_t>(i);
    return all.gradient.view().col_range(cuts[j], cuts[j + 1] - cuts[j]);
  };
  for (std::int64_t i = 0; i < parts; ++i) {
    run(device,
        ClassifyPart{.logits = part_of(i),
                     .targets = targets.view(),
                     .stats = all.stats.view().range(kPartStats * rows * i, kPartStats * rows),
                     .first_token = cuts[static_cast<std::size_t>(i)],
                     .vocab = vocabulary,
                     .soft_cap = soft_cap});
  }
  EXPECT_TRUE(all.gradient.same_bits(logits)) << "stats only";
  run(device, ClassifyLoss{.stats = all.stats.view(),
                           .targets = targets.view(),
                           .losses = all.losses.view(),
                           .lse = all.lse.view(),
                           .vocab = vocabulary,
                           .terms = terms});
  for (std::int64_t i = 0; i < parts; ++i) {
    run(device, ClassifyGradient{.logits = part_of(i),
                                 .targets = targets.view(),
                                 .lse = all.lse.view(),
                                 .scale = scale.view(),
                                 .first_token = cuts[static_cast<std::size_t>(i)],
                                 .vocab = vocabulary,
                                 .soft_cap = soft_cap,
                                 .terms = terms});
  }
  return all;
}

/// Logits with a soft cap, in double.
Tensor capped(const Tensor& logits, double cap) {
  Tensor all(DType::f32, {logits.view().rows(), logits.view().cols()});
  for (std::int64_t i = 0; i < all.size(); ++i) all.set(i, cap * std::tanh(logits[i] / cap));
  return all;
}

// tanh errs by 4 ulp, the quotient and the product before and behind it by one each: a capped logit
// by 6 u cap, beside the u of the f32 that the reference is kept in.
TEST(ClassifySoftCap, LossAndGradientAgreeWithDouble) {
  for_devices_and_types([](Device& device, DType type) {
    const std::int64_t rows = 5, vocabulary = 97, padded = 104;
    const double cap = 4;
    const auto logits0 = Tensor::random(type, {rows, padded}, 1, 6);
    Tensor targets(DType::i32, {rows}), scale(DType::f32, {1});
    for (std::int64_t r = 0; r < rows; ++r) targets.set(r, r == 3 ? -1 : r * 31 % vocabulary);
    scale.set(0, 0.125);
    Numbers loss, gradient, bound;
    const double e =
        0x1p-24 * ((1 + exponent_error(type)) * 2 * cap + 4 + sum_depth(vocabulary) + 2 * 8 * cap);
    const Tensor small = capped(logits0, cap);
    for (std::int64_t r = 0; r < rows; ++r) {
      const bool ignored = targets[r] < 0;
      const Row row = softmax_row(small, r, vocabulary, std::max(0.0, targets[r]));
      loss.push_back(ignored ? 0 : row.loss);
      for (std::int64_t i = 0; i < padded; ++i) {
        const double t = std::tanh(logits0[r * padded + i] / cap);
        const double p = i < vocabulary ? row.probability[static_cast<std::size_t>(i)] : 0;
        const double hit = static_cast<double>(i) == targets[r] ? 1 : 0;
        const double d = 0.125 * (p - hit);
        const bool none = ignored || i >= vocabulary;
        gradient.push_back(none ? 0 : d * (1 - t * t));
        bound.push_back(none ? 0
                             : 0.125 * (2 * e * p + 0x1p-22 * hit) + 10 * 0x1p-24 * std::abs(d) +
                                   write_error(type, d));
      }
    }
    const auto expect = [&](const Tensor& losses, const Tensor& logits) {
      expect_within(
          losses, loss,
          [&](std::int64_t i) {
            return e + 0x1p-22 * (1 + std::abs(loss[static_cast<std::size_t>(i)]));
          },
          "losses");
      expect_within(
          logits, gradient, [&](std::int64_t i) { return bound[static_cast<std::size_t>(i)]; },
          "gradient");
    };
    const Tensor logits = logits0.copy(), losses(DType::f32, {rows});
    run(device, Classify{.logits = logits.view(),
                         .targets = targets.view(),
                         .losses = losses.view(),
                         .scale = scale.view(),
                         .vocab = vocabulary,
                         .soft_cap = static_cast<float>(cap)});
    expect(losses, logits);
    const ByParts parts = classify_parts(device, logits0, targets, scale, vocabulary,
                                         {0, 31, 60, 97, 104}, static_cast<float>(cap));
    expect(parts.losses, parts.gradient);
  });
}

TEST(SoftCap, AgreesWithDouble) {
  for_devices_and_types([](Device& device, DType type) {
    for (const float cap : {0.5F, 30.0F}) {
      const auto x = Tensor::random(type, {3, 41}, 1, 40, 2);
      const Tensor out(type, {3, 41}, 3);
      run(device, SoftCap{.x = x.view(), .out = out.view(), .cap = cap});
      Numbers want;
      for (std::int64_t i = 0; i < x.size(); ++i)
        want.push_back(static_cast<double>(cap) * std::tanh(x[i] / static_cast<double>(cap)));
      expect_within(
          out, want,
          [&](std::int64_t i) {
            const double w = want[static_cast<std::size_t>(i)];
            return 8 * 0x1p-23 * std::abs(w) + write_error(type, w);
          },
          "out");
    }
    const Tensor x(type, {1, 2});
    EXPECT_THROW(run(device, SoftCap{.x = x.view(), .out = x.view()}), InternalError);
  });
}

struct PartsCase {
  Tensor logits, targets, scale;
};
/// Targets on both sides of the cuts below, one ignored; not-a-numbers in the padding.
PartsCase parts_case(DType type, std::int64_t vocabulary, std::int64_t padded) {
  const std::vector<double> targets = {
      0,  static_cast<double>(vocabulary / 3 - 1), static_cast<double>(vocabulary / 3),
      -1, static_cast<double>(vocabulary / 2),     static_cast<double>(vocabulary - 1)};
  const auto rows = static_cast<std::int64_t>(targets.size());
  PartsCase c{.logits = Tensor::random(type, {rows, padded}, 1, 5, 2),
              .targets = Tensor(DType::i32, {rows}),
              .scale = Tensor(DType::f32, {1})};
  for (std::int64_t r = 0; r < rows; ++r) {
    c.targets.set(r, targets[static_cast<std::size_t>(r)]);
    for (std::int64_t i = vocabulary; i < padded; ++i) {
      c.logits.set(r * padded + i, std::numeric_limits<double>::quiet_NaN());
    }
  }
  c.scale.set(0, 0.125);
  return c;
}

TEST(ClassifyParts, LossAndGradientAgreeWithDouble) {
  for_devices_and_types([](Device& device, DType type) {
    for (std::int64_t vocabulary : {6, 64, 97, 5003}) {
      const std::int64_t padded = vocabulary + 40;
      const PartsCase c = parts_case(type, vocabulary, padded);
      const std::int64_t rows = c.logits.view().extent(0);
      const std::vector<std::vector<std::int64_t>> all_cuts = {
          {0, padded},
          {0, vocabulary / 2, padded},
          {0, 1, vocabulary / 3, vocabulary / 2, vocabulary, vocabulary + 5, padded}};
      for (const auto& cuts : all_cuts) {
        const ByParts got = classify_parts(device, c.logits, c.targets, c.scale, vocabulary, cuts);
        Numbers loss, lse, gradient, loss_bound, lse_bound, bound;
        for (std::int64_t r = 0; r < rows; ++r) {
          const bool ignored = c.targets[r] < 0;
          const Row row = softmax_row(c.logits, r, vocabulary, std::max(0.0, c.targets[r]));
          const double first_logit =
              c.logits[r * padded +
                       std::max<std::int64_t>(0, static_cast<std::int64_t>(c.targets[r]))];
          // Of the sum: as above; a part's sum is written as f32.
          const double u = 0x1p-24, want_lse = row.loss + first_logit;
          const double sum = u * ((1 + exponent_error(type)) * (std::abs(row.top) + 25) + 5 +
                                  sum_depth(std::min<std::int64_t>(vocabulary, 4096)));
          lse.push_back(want_lse), lse_bound.push_back(sum + u * (1 + std::abs(want_lse)));
          loss.push_back(ignored ? 0 : row.loss);
          loss_bound.push_back(ignored ? 0 : sum + u * (1 + row.loss));
          for (std::int64_t i = 0; i < padded; ++i) {
            double g = 0, b = 0;
            if (i < vocabulary && !ignored) {
              const double p = row.probability[static_cast<std::size_t>(i)];
              const double hit = static_cast<double>(i) == c.targets[r] ? 1 : 0;
              // x - lse errs by lse's error and one rounding; e^x by 2 ulp, two products by one.
              const double distance = std::abs(c.logits[r * padded + i] - want_lse);
              const double relative =
                  1.01 * (lse_bound.back() + exponent_error(type) * u * distance + 6 * u);
              g = 0.125 * (p - hit);
              b = 0.125 * (relative * p + 2 * u * hit) + write_error(type, g) * 1.01;
            }
            gradient.push_back(g), bound.push_back(b);
          }
        }
        const auto of = [](const Numbers& bounds) {
          return [&](std::int64_t i) { return bounds[static_cast<std::size_t>(i)]; };
        };
        expect_within(got.losses, loss, of(loss_bound), "losses");
        expect_within(got.lse, lse, of(lse_bound), "lse");
        expect_within(got.gradient, gradient, of(bound), "gradient");
      }
    }
  });
}

TEST(ClassifyParts, StatsSayWhatAPartKnows) {
  for_devices_and_types([](Device& device, DType type) {
    const std::int64_t vocabulary = 50;
    const PartsCase c = parts_case(type, vocabulary, 90);
    const ByParts got =
        classify_parts(device, c.logits, c.targets, c.scale, vocabulary, {0, 16, 50, 90});
    const std::int64_t rows = c.logits.view().extent(0);
    for (std::int64_t r = 0; r < rows; ++r) {
      double top = -1e300, sum = 0, magnitude = 0;
      for (std::int64_t i = 16; i < 50; ++i) {
        const double logit = c.logits[r * 90 + i];
        top = std::max(top, logit), sum += logit, magnitude += std::abs(logit);
      }
      const std::int64_t part = kPartStats * (rows + r);
      EXPECT_EQ(got.stats[part], top);
      const auto target = static_cast<std::int64_t>(c.targets[r]);
      EXPECT_EQ(got.stats[part + 2], target >= 16 ? c.logits[r * 90 + target] : 0);
      EXPECT_NEAR(got.stats[part + 3], sum, 0x1p-24 * sum_depth(34) * magnitude);
      const double padding[] = {-std::numeric_limits<double>::infinity(), 0, 0, 0};
      for (std::int64_t i = 0; i < kPartStats; ++i) {
        EXPECT_EQ(got.stats[kPartStats * (2 * rows + r) + i], padding[i]) << "padding";
      }
    }
  });
}

// The same sum of exponentials, rounded to f32 before its logarithm: u of the loss, beside the
// rounding of both losses.
TEST(ClassifyParts, OnePartIsClassify) {
  for_devices_and_types([](Device& device, DType type) {
    const std::int64_t vocabulary = 1003;
    const PartsCase c = parts_case(type, vocabulary, vocabulary);
    const ByParts got =
        classify_parts(device, c.logits, c.targets, c.scale, vocabulary, {0, vocabulary});
    const Tensor whole = c.logits.copy(), losses(DType::f32, {got.losses.size()});
    run(device, Classify{.logits = whole.view(),
                         .targets = c.targets.view(),
                         .losses = losses.view(),
                         .scale = c.scale.view(),
                         .vocab = vocabulary});
    const double u = 0x1p-24;
    expect_within(
        got.losses, losses.numbers(),
        [&](std::int64_t i) { return 1.01 * u * (1 + 2 * losses[i]); }, "losses");
    // |x - max| and |x - lse| stay below 60, |lse| below 40, each rounded once; both exponentials
    // err by 2 ulp; sum, weight and products by one rounding each.
    const double relative = 1.01 * u * (exponent_error(type) * (60 + 60) + 40 + 8 + 5);
    expect_within(
        got.gradient, whole.numbers(),
        [&](std::int64_t i) {
          const bool hit = i % vocabulary == static_cast<std::int64_t>(c.targets[i / vocabulary]);
          const double p = hit ? 0.125 : std::abs(whole[i]);
          return relative * p + 2.02 * write_error(type, whole[i]);
        },
        "gradient");
  });
}

TEST(ClassifyParts, HugeLogitsDoNotOverflow) {
  for_devices([](Device& device) {
    Tensor logits(DType::f32, {2, 40}), targets(DType::i32, {2}), scale(DType::f32, {1});
    for (std::int64_t i = 0; i < logits.size(); ++i) logits.set(i, -1e38);
    logits.set(5, 1e38), logits.set(45, 1e38);  // all of the probability
    targets.set(0, 5), targets.set(1, 30), scale.set(0, 0.5);
    const ByParts got = classify_parts(device, logits, targets, scale, 35, {0, 20, 40});
    EXPECT_EQ(got.losses.numbers(), (Numbers{0, 2.0F * 1e38F}));
    EXPECT_EQ(got.lse.numbers(), (Numbers{1e38F, 1e38F}));
    Numbers gradient(80);
    gradient[45] = 0.5, gradient[70] = -0.5;
    EXPECT_EQ(got.gradient.numbers(), gradient);
  });
}

TEST(ClassifyParts, InfinitiesStayInTheirPartAndNansAreSeen) {
  for_devices([](Device& device) {
    const double infinity = std::numeric_limits<double>::infinity();
    Tensor logits(DType::f32, {2, 40}), targets(DType::i32, {2}), scale(DType::f32, {1});
    for (std::int64_t i = 20; i < 40; ++i) logits.set(i, -infinity);  // a part without hope
    logits.set(47, std::numeric_limits<double>::quiet_NaN());
    targets.set(0, 3), targets.set(1, 30), scale.set(0, 1);
    const ByParts got = classify_parts(device, logits, targets, scale, 40, {0, 20, 40});
    EXPECT_NEAR(got.losses[0], std::log(20.0), 1e-6);
    for (std::int64_t i = 0; i < 40; ++i) {
      const double want = i == 3 ? 0.05 - 1 : i < 20 ? 0.05 : 0;
      EXPECT_NEAR(got.gradient[i], want, 1e-6);
    }
    EXPECT_TRUE(std::isnan(got.losses[1]));
    for (std::int64_t i = 40; i < 80; ++i) EXPECT_TRUE(std::isnan(got.gradient[i]));
  });
}

TEST(ClassifyParts, RefuseTargetsBeyondTheVocabulary) {
  const auto device = make_cpu_device({.threads = 1});
  const Tensor logits(DType::f32, {2, 8}), stats(DType::f32, {2, kPartStats});
  Tensor targets(DType::i32, {2});
  ClassifyPart call{.logits = logits.view(),
                    .targets = targets.view(),
                    .stats = stats.view(),
                    .first_token = 8,
                    .vocab = 15};
  EXPECT_NO_THROW(device->run(call));
  targets.set(1, 15);  // a column of padding
  EXPECT_THROW(device->run(call), InternalError);
}

/// Losses and gradients of LossTerms in double, with bounds of their errors.
struct TermsReference {
  Numbers loss, loss_bound, gradient, bound;
};

// With u = 2^-24 and logits that err by c (6 u cap of a soft cap, as above, and u of what is kept):
// lse errs by e, as in LossAndGradientAgreeWithDouble, and 2 c; the mean by c and the depth of a
// sum of magnitudes; a part's sums are rounded once more. A probability errs by e and u (|x - lse|
// + |lse|) of itself, what z multiplies by 2 z e, and what is written by one rounding for each of
// the few operations on it.
TermsReference terms_reference(const PartsCase& c, DType type, std::int64_t vocabulary, double cap,
                               const LossTerms& terms) {
  TermsReference want;
  const double u = 0x1p-24, z = static_cast<double>(terms.z_loss);
  const double s = static_cast<double>(terms.label_smoothing), v = static_cast<double>(vocabulary);
  const double depth = sum_depth(std::min<std::int64_t>(vocabulary, 4096)),
               logit_error = 8 * u * cap;
  const Tensor logits = cap > 0 ? capped(c.logits, cap) : c.logits.copy();
  const std::int64_t padded = logits.view().cols();
  for (std::int64_t r = 0; r < logits.view().rows(); ++r) {
    const bool ignored = c.targets[r] < 0;
    const auto target = static_cast<std::int64_t>(std::max(0.0, c.targets[r]));
    const Row row = softmax_row(logits, r, vocabulary, static_cast<double>(target));
    const double at_target = logits[r * padded + target], lse = row.loss + at_target;
    double mean = 0, magnitude = 0;
    for (std::int64_t i = 0; i < vocabulary; ++i) {
      mean += logits[r * padded + i] / v, magnitude += std::abs(logits[r * padded + i]) / v;
    }
    const double e =
        u * ((1 + exponent_error(type)) * (std::abs(row.top) + 25) + 5 + depth) + 2 * logit_error;
    const double loss = lse - (1 - s) * at_target - s * mean + z * lse * lse;
    want.loss.push_back(ignored ? 0 : loss);
    want.loss_bound.push_back(ignored ? 0
                                      : (1 + 2 * z * (std::abs(lse) + e)) * e + logit_error +
                                            s * u * (depth + 2) * magnitude +
                                            2 * u * (1 + std::abs(loss)));
    for (std::int64_t i = 0; i < padded; ++i) {
      if (ignored || i >= vocabulary) {
        want.gradient.push_back(0), want.bound.push_back(0);
        continue;
      }
      const double p = row.probability[static_cast<std::size_t>(i)];
      const double hit = i == target ? 1 - s : 0, t = c.logits[r * padded + i] / cap;
      const double slope = cap > 0 ? 1 - std::tanh(t) * std::tanh(t) : 1;
      const double d = p * (1 + 2 * z * lse) - s / v - hit;
      const double all = p * (1 + 2 * z * std::abs(lse)) + s / v + hit;
      const double distance = std::abs(logits[r * padded + i] - lse);
      const double of_p = 2 * e + u * (exponent_error(type) * distance + std::abs(lse) + 10);
      const double error = of_p * all + 2 * z * e * p + u * (cap > 0 ? 16 : 6) * all;
      want.gradient.push_back(0.125 * d * slope);
      want.bound.push_back(1.01 * (0.125 * error + write_error(type, 0.125 * d * slope)));
    }
  }
  return want;
}

TEST(ClassifyTerms, LossAndGradientAgreeWithDouble) {
  const std::vector<LossTerms> all_terms = {
      {.label_smoothing = 0.1F}, {.z_loss = 0.01F}, {.label_smoothing = 0.3F, .z_loss = 1e-4F}};
  for_devices_and_types([&](Device& device, DType type) {
    for (const std::int64_t vocabulary : {6, 97, 4099}) {
      const std::int64_t padded = vocabulary + 7;
      const PartsCase c = parts_case(type, vocabulary, padded);
      for (const float cap : {0.0F, 4.0F}) {
        for (const LossTerms& terms : all_terms) {
          if (vocabulary > 4096 && (cap > 0 || &terms != &all_terms.back())) continue;  // slow
          const TermsReference want =
              terms_reference(c, type, vocabulary, static_cast<double>(cap), terms);
          const auto expect = [&](const Tensor& losses, const Tensor& logits, const char* what) {
            const auto of = [](const Numbers& bounds) {
              return [&](std::int64_t i) { return bounds[static_cast<std::size_t>(i)]; };
            };
            expect_within(losses, want.loss, of(want.loss_bound), what);
            expect_within(logits, want.gradient, of(want.bound), what);
          };
          const Tensor logits = c.logits.copy(), losses(DType::f32, {c.targets.size()});
          Classify call{.logits = logits.view(),
                        .targets = c.targets.view(),
                        .losses = losses.view(),
                        .vocab = vocabulary,
                        .soft_cap = cap,
                        .terms = terms};
          run(device, call);
          const Tensor losses_only = losses.copy();
          call.scale = c.scale.view();
          run(device, call);
          EXPECT_TRUE(losses.same_bits(losses_only));
          expect(losses, logits, "whole");
          const ByParts parts = classify_parts(
              device, c.logits, c.targets, c.scale, vocabulary,
              {0, 1, vocabulary / 3, vocabulary / 2, vocabulary, vocabulary + 2, padded}, cap,
              terms);
          expect(parts.losses, parts.gradient, "by parts");
        }
      }
    }
  });
}

TEST(ClassifyTerms, GradientAgreesWithFiniteDifferences) {
  for_devices([](Device& device) {
    const std::int64_t vocabulary = 11;
    const LossTerms terms{.label_smoothing = 0.2F, .z_loss = 0.05F};
    const double s = static_cast<double>(terms.label_smoothing),
                 z = static_cast<double>(terms.z_loss);
    const auto logits0 = Tensor::random(DType::f32, {1, vocabulary}, 1, 2);
    const Tensor logits = logits0.copy(), losses(DType::f32, {1});
    Tensor targets(DType::i32, {1}), scale(DType::f32, {1});
    targets.set(0, 4), scale.set(0, 1);
    run(device, Classify{.logits = logits.view(),
                         .targets = targets.view(),
                         .losses = losses.view(),
                         .scale = scale.view(),
                         .vocab = vocabulary,
                         .terms = terms});
    const auto loss = [&](const Numbers& x) {
      double sum = 0, all = 0;
      for (const double logit : x) sum += std::exp(logit);
      for (const double logit : x) all += std::log(sum) - logit;
      const double lse = std::log(sum);
      return (1 - s) * (lse - x[4]) + s * all / 11 + z * lse * lse;
    };
    const Numbers want = numeric_gradient(loss, logits0.numbers());
    const auto bound = [](std::int64_t) { return 2e-6; };
    expect_within(logits, want, bound, "gradient");
    EXPECT_NEAR(losses[0], loss(logits0.numbers()), 2e-6);
    const ByParts parts =
        classify_parts(device, logits0, targets, scale, vocabulary, {0, 3, 11}, 0, terms);
    expect_within(parts.gradient, want, bound, "gradient by parts");
  });
}

// A logit of -inf has no probability; without smoothing nothing else asks for it.
TEST(ClassifyTerms, AnImpossibleTokenMattersToSmoothingOnly) {
  for_devices([](Device& device) {
    Tensor logits(DType::f32, {1, 20}), targets(DType::i32, {1}), scale(DType::f32, {1});
    logits.set(7, -std::numeric_limits<double>::infinity()), scale.set(0, 1);
    const auto loss = [&](const LossTerms& terms) {
      return classify_parts(device, logits, targets, scale, 20, {0, 5, 20}, 0, terms).losses[0];
    };
    const double lse = std::log(19.0);
    EXPECT_NEAR(loss({}), lse, 1e-6);
    EXPECT_NEAR(loss({.z_loss = 0.5F}), lse + 0.5 * lse * lse, 1e-5);
    EXPECT_EQ(loss({.label_smoothing = 0.1F}), std::numeric_limits<double>::infinity());
  });
}

TEST(ClassifyTerms, RefusesWhatIsNoTerm) {
  const auto device = make_cpu_device({.threads = 1});
  const Tensor logits(DType::f32, {2, 8}), targets(DType::i32, {2}), losses(DType::f32, {2});
  for (const LossTerms& terms :
       {LossTerms{.label_smoothing = 1}, {.label_smoothing = -0.1F}, {.z_loss = -1}}) {
    EXPECT_THROW(device->run(Classify{.logits = logits.view(),
                                      .targets = targets.view(),
                                      .losses = losses.view(),
                                      .vocab = 8,
                                      .terms = terms}),
                 InternalError);
  }
}

}  // namespace
}  // namespace tessera::kernels::test
