#include <algorithm>
#include <numeric>

#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

struct Case {
  std::int64_t samples, tokens, columns, gap;
  NormKind kind;
  bool bias;
  float dropout;
};
const std::vector<Case> kCases = {
    {1, 1, 1, 0, NormKind::rmsnorm, false, 0},
    {1, 3, 2, 1, NormKind::layernorm, true, 0},
    {2, 5, 17, 3, NormKind::layernorm, true, 0},
    {2, 13, 97, 0, NormKind::rmsnorm, false, 0.2F},
    {3, 31, 768, 0, NormKind::layernorm, true, 0},
    {1, 7, 600, 5, NormKind::layernorm, false, 0.5F},
    {1, 5, 1601, 0, NormKind::layernorm, true, 0},
    {2, 2, 6000, 8, NormKind::rmsnorm, true, 0.1F},
    {1, 2, 20000, 0, NormKind::layernorm, true, 0},
    {1, 2, 40007, 1, NormKind::layernorm, true, 0},
};

struct RowNorm {
  double mean = 0, scale = 0;
  Numbers unit;
};
RowNorm norm_row(const Numbers& x, std::int64_t first, std::int64_t n, NormKind kind, double eps) {
  RowNorm r;
  for (std::int64_t i = 0; i < n; ++i) r.mean += x[static_cast<std::size_t>(first + i)];
  r.mean = kind == NormKind::layernorm ? r.mean / static_cast<double>(n) : 0;
  double squares = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    squares += std::pow(x[static_cast<std::size_t>(first + i)] - r.mean, 2);
  }
  r.scale = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
  for (std::int64_t i = 0; i < n; ++i) {
    r.unit.push_back((x[static_cast<std::size_t>(first + i)] - r.mean) * r.scale);
  }
  return r;
}

/// The mean errs by sum_depth(n) u max |x|, the variance by as much of itself, and each step of
/// (x - mean) scale by u.
double row_error(std::int64_t n) { return (sum_depth(n) + 7) * 0x1p-24; }

struct Call {
  Case c;
  Tensor resid, pending, weight, bias, samples;
  float eps = 1e-5F;

  Dropout dropout() const {
    return {.p = c.dropout, .seed = 3, .site = 9, .samples = samples.view()};
  }
};
Call make_call(const Case& c, DType type) {
  const std::vector<std::int64_t> shape = {c.samples, c.tokens, c.columns};
  Call call{.c = c,
            .resid = Tensor::random(type, shape, 1, 2, c.gap),
            .pending = Tensor::random(type, shape, 2, 1, c.gap),
            .weight = Tensor::random(type, {c.columns}, 3),
            .bias = Tensor::random(type, {c.columns}, 4),
            .samples = Tensor(DType::i64, {c.samples})};
  for (std::int64_t b = 0; b < c.samples; ++b) call.samples.set(b, static_cast<double>(50 - b));
  return call;
}

TEST(AddNorm, AddsThenNormalisesWhatWasWritten) {
  for_devices_and_types([](Device& device, DType type) {
    for (const Case& c : kCases) {
      const Call in = make_call(c, type);
      const std::vector<std::int64_t> shape = {c.samples, c.tokens, c.columns};
      Tensor sum(type, shape, c.gap), out(type, shape, c.gap);
      Tensor stats(DType::f32, {c.samples * c.tokens, 2});
      run(device, AddNorm{.resid = in.resid.view(),
                          .pending = in.pending.view(),
                          .weight = in.weight.view(),
                          .bias = c.bias ? in.bias.view() : View(),
                          .sum = sum.view(),
                          .out = out.view(),
                          .stats = stats.view(),
                          .kind = c.kind,
                          .eps = in.eps,
                          .dropout = in.dropout()});
      Numbers want_sum, want_out, bound, want_stats, stats_bound;
      const std::int64_t per_sample = c.tokens * c.columns;
      for (std::int64_t i = 0; i < sum.size(); ++i) {
        const double f = dropout_factor(in.dropout(), i / per_sample, i % per_sample);
        want_sum.push_back(in.resid[i] + f * in.pending[i]);
      }
      expect_within(
          sum, want_sum,
          [&](std::int64_t i) {  // the product with the factor, the sum, and writing it
            return 0x1p-23 * (std::abs(in.resid[i]) + 2 * std::abs(in.pending[i])) +
                   write_error(type, want_sum[static_cast<std::size_t>(i)]);
          },
          "sum");
      const Numbers written = sum.numbers();
      for (std::int64_t r = 0; r < c.samples * c.tokens; ++r) {
        const RowNorm row = norm_row(written, r * c.columns, c.columns, c.kind, in.eps);
        double top = 0;
        for (std::int64_t i = 0; i < c.columns; ++i) {
          top = std::max(top, std::abs(sum[r * c.columns + i]));
        }
        const double unit_error = row_error(c.columns) * (1 + top * row.scale);
        for (std::int64_t i = 0; i < c.columns; ++i) {
          const double w = in.weight[i], b = c.bias ? in.bias[i] : 0;
          const double unit = row.unit[static_cast<std::size_t>(i)];
          want_out.push_back(unit * w + b);
          bound.push_back(unit_error * std::abs(w) * (1 + std::abs(unit)) + 0x1p-23 * std::abs(b) +
                          write_error(type, unit * w + b));
        }
        want_stats.insert(want_stats.end(), {row.mean, row.scale});
        stats_bound.insert(
            stats_bound.end(),
            {row_error(c.columns) * top, row_error(c.columns) * row.scale * (1 + top * row.scale)});
      }
      expect_within(
          out, want_out, [&](std::int64_t i) { return bound[static_cast<std::size_t>(i)]; }, "out");
      expect_within(
          stats, want_stats,
          [&](std::int64_t i) { return stats_bound[static_cast<std::size_t>(i)]; }, "stats");
    }
  });
}

TEST(AddNorm, WithNothingPendingNormalisesTheResidual) {
  for_devices_and_types([](Device& device, DType type) {
    const Call in = make_call({2, 5, 19, 2, NormKind::layernorm, true, 0}, type);
    Tensor zero(type, {2, 5, 19}), sum(type, {2, 5, 19}), out(type, {2, 5, 19});
    Tensor alone(type, {2, 5, 19}), stats(DType::f32, {10, 2});
    AddNorm call{.resid = in.resid.view(),
                 .pending = zero.view(),
                 .weight = in.weight.view(),
                 .bias = in.bias.view(),
                 .sum = sum.view(),
                 .out = out.view(),
                 .stats = stats.view()};
    run(device, call);
    call.pending = call.sum = View();
    call.out = alone.view();
    run(device, call);
    EXPECT_TRUE(alone.same_bits(out));
  });
}

/// d . norm(x) weight + bias, as a function of x, weight or bias.
double loss(const Numbers& x, const Numbers& weight, const Numbers& bias, const Numbers& d,
            const Case& c, double eps) {
  double total = 0;
  for (std::int64_t r = 0; r < c.samples * c.tokens; ++r) {
    const RowNorm row = norm_row(x, r * c.columns, c.columns, c.kind, eps);
    for (std::int64_t i = 0; i < c.columns; ++i) {
      const auto j = static_cast<std::size_t>(i);
      total += d[static_cast<std::size_t>(r * c.columns + i)] * (row.unit[j] * weight[j] + bias[j]);
    }
  }
  return total;
}

TEST(NormBackward, AgreesWithFiniteDifferences) {
  for_devices_and_types([](Device& device, DType type) {
    for (const Case& c : kCases) {
      if (c.columns > 100) continue;  // a difference quotient per element is slow
      for (Write write : {Write::overwrite, Write::add}) {
        const Call in = make_call(c, type);
        const std::vector<std::int64_t> shape = {c.samples, c.tokens, c.columns};
        const auto d_out = Tensor::random(type, shape, 11, 1, c.gap);
        const auto d_resid = Tensor::random(type, shape, 12, 1, c.gap);
        const auto d_weight0 = Tensor::random(DType::f32, {c.columns}, 13);
        const auto d_bias0 = Tensor::random(DType::f32, {c.columns}, 14);
        const Tensor d_weight = d_weight0.copy(), d_bias = d_bias0.copy();
        Tensor out(type, shape, c.gap), stats(DType::f32, {c.samples * c.tokens, 2});
        run(device, AddNorm{.resid = in.resid.view(),
                            .weight = in.weight.view(),
                            .out = out.view(),
                            .stats = stats.view(),
                            .kind = c.kind});
        const Tensor d_sum = d_resid.copy();  // in place: d_resid is d_sum's memory
        run(device, NormBackward{.d_out = d_out.view(),
                                 .d_resid = d_sum.view(),
                                 .sum = in.resid.view(),
                                 .weight = in.weight.view(),
                                 .stats = stats.view(),
                                 .d_sum = d_sum.view(),
                                 .d_weight = d_weight.view(),
                                 .d_bias = c.bias ? d_bias.view() : View(),
                                 .kind = c.kind,
                                 .write = write});
        const Numbers x = in.resid.numbers(), w = in.weight.numbers(), d = d_out.numbers();
        const Numbers b(w.size());
        Numbers want_x = numeric_gradient(
            [&](const Numbers& moved) { return loss(moved, w, b, d, c, 1e-5F); }, x);
        Numbers want_w = numeric_gradient(
            [&](const Numbers& moved) { return loss(x, moved, b, d, c, 1e-5F); }, w);
        Numbers want_b = numeric_gradient(
            [&](const Numbers& moved) { return loss(x, w, moved, d, c, 1e-5F); }, b);
        double scale = 0, unit = 0;
        for (std::int64_t r = 0; r < c.samples * c.tokens; ++r) {
          const RowNorm row = norm_row(x, r * c.columns, c.columns, c.kind, 1e-5F);
          scale = std::max(scale, row.scale), unit = std::max(unit, largest(row.unit));
        }
        // Every term of d_sum is at most G scale (1 + unit^2); each carries the row's error. The
        // difference quotient itself errs by h^2 f''' ~ 1e-8 of G (scale (1 + unit))^3.
        const double g = largest(d) * (1 + largest(w));
        const double top = largest(x) * scale;
        const double quotient = 1e-8 * g * std::pow(scale * (1 + unit), 3) * 10 + 1e-9;
        const double error = 4 * row_error(c.columns) * (1 + top) * g * (1 + unit * unit);
        for (std::int64_t i = 0; i < d_sum.size(); ++i) {
          want_x[static_cast<std::size_t>(i)] += d_resid[i];
        }
        expect_within(
            d_sum, want_x,
            [&](std::int64_t i) {
              const double value = want_x[static_cast<std::size_t>(i)];
              return quotient + error * scale + write_error(type, std::abs(value) + error * scale) +
                     0x1p-23 * std::abs(d_resid[i]);
            },
            "d_sum");
        const auto rows = static_cast<double>(c.samples * c.tokens);
        const double sums = (error + 2 * rows * 0x1p-24 * g * (1 + unit)) * rows + quotient;
        if (write == Write::add) {
          for (std::int64_t i = 0; i < c.columns; ++i) {
            want_w[static_cast<std::size_t>(i)] += d_weight0[i];
            want_b[static_cast<std::size_t>(i)] += d_bias0[i];
          }
        }
        expect_within(
            d_weight, want_w, [&](std::int64_t) { return sums; }, "d_weight");
        if (c.bias)
          expect_within(
              d_bias, want_b, [&](std::int64_t) { return sums; }, "d_bias");
        if (!c.bias) {
          EXPECT_TRUE(d_bias.same_bits(d_bias0));
        }
      }
    }
  });
}

// Rows of every length that GPUs divide in a way of its own, several chunks of them.
TEST(NormBackward, LongRowsAgreeWithDouble) {
  for_devices_and_types([](Device& device, DType type) {
    for (const std::int64_t columns :
         tessera::test::some_of(std::vector<std::int64_t>{250, 900, 2001, 4096, 8008, 9001})) {
      const NormKind kind = columns == 900 ? NormKind::rmsnorm : NormKind::layernorm;
      const std::int64_t rows = columns < 1000 ? 37 : 18;
      const Case c{1, rows, columns, 0, kind, true, 0};
      const Call in = make_call(c, type);
      const auto d_out = Tensor::random(type, {1, rows, columns}, 11);
      const Tensor out(type, {1, rows, columns}), stats(DType::f32, {rows, 2}),
          d_sum(type, {1, rows, columns}), d_weight(DType::f32, {columns}),
          d_bias(DType::f32, {columns});
      run(device, AddNorm{.resid = in.resid.view(),
                          .weight = in.weight.view(),
                          .out = out.view(),
                          .stats = stats.view(),
                          .kind = kind});
      run(device, NormBackward{.d_out = d_out.view(),
                               .sum = in.resid.view(),
                               .weight = in.weight.view(),
                               .stats = stats.view(),
                               .d_sum = d_sum.view(),
                               .d_weight = d_weight.view(),
                               .d_bias = d_bias.view(),
                               .kind = kind});
      const Numbers x = in.resid.numbers();
      Numbers want, bound, want_w(static_cast<std::size_t>(columns)), want_b = want_w;
      double g_top = 0, unit_top = 0, error = 0;
      for (std::int64_t r = 0; r < rows; ++r) {
        const RowNorm row = norm_row(x, r * columns, columns, kind, in.eps);
        double mean_g = 0, mean_gx = 0, top = 0;
        for (std::int64_t i = 0; i < columns; ++i) {
          const auto j = static_cast<std::size_t>(i);
          const double d = d_out[r * columns + i], g = d * in.weight[i];
          mean_g += g / static_cast<double>(columns);
          mean_gx += g * row.unit[j] / static_cast<double>(columns);
          want_w[j] += d * row.unit[j], want_b[j] += d;
          g_top = std::max({g_top, std::abs(g), std::abs(d)});
          unit_top = std::max(unit_top, std::abs(row.unit[j]));
          top = std::max(top, std::abs(x[static_cast<std::size_t>(r * columns + i)]));
        }
        // As in AgreesWithFiniteDifferences, without its quotient.
        error = 4 * row_error(columns) * (1 + top * row.scale) * g_top * (1 + unit_top * unit_top);
        for (std::int64_t i = 0; i < columns; ++i) {
          const double g = d_out[r * columns + i] * in.weight[i];
          const double unit = row.unit[static_cast<std::size_t>(i)];
          want.push_back(row.scale *
                         (g - (kind == NormKind::layernorm ? mean_g : 0) - unit * mean_gx));
          bound.push_back(error * row.scale +
                          write_error(type, std::abs(want.back()) + error * row.scale));
        }
      }
      const auto n = static_cast<double>(rows);
      const double sums = (error + 2 * n * 0x1p-24 * g_top * (1 + unit_top)) * n;
      expect_within(
          d_sum, want, [&](std::int64_t i) { return bound[static_cast<std::size_t>(i)]; }, "d_sum");
      expect_within(
          d_weight, want_w, [&](std::int64_t) { return sums; }, "d_weight");
      expect_within(
          d_bias, want_b, [&](std::int64_t) { return sums; }, "d_bias");
    }
  });
}

/// Two tensors of one call and their gradients: `heads` heads of so many columns within wider rows.
struct HeadsCase {
  HeadsCase(DType type, std::int64_t of_heads, std::int64_t wide)
      : heads(of_heads),
        columns(wide),
        x(Tensor::random(type, {kSamples, kTokens, heads * columns + 6}, 1, 2)),
        d(Tensor::random(type, {kSamples, kTokens, heads * columns + 6}, 2)),
        weight(Tensor::random(type, {columns}, 3)),
        out(x.copy()),
        d_x(x.copy()),
        stats(DType::f32, {kSamples * kTokens * heads, 2}),
        d_weight(DType::f32, {columns}) {}

  /// The heads [first, first + count).
  View part(const Tensor& t, std::int64_t first, std::int64_t count) const {
    return t.view().col_range(3 + first * columns, count * columns);
  }
  void run_both(Device& device, std::int64_t first, std::int64_t count) const {
    run(device, AddNorm{.resid = part(x, first, count),
                        .weight = weight.view(),
                        .out = part(out, first, count),
                        .stats = stats.view().range(0, kSamples * kTokens * count * 2),
                        .kind = NormKind::rmsnorm,
                        .heads = count});
    run(device, NormBackward{.d_out = part(d, first, count),
                             .sum = part(x, first, count),
                             .weight = weight.view(),
                             .stats = stats.view().range(0, kSamples * kTokens * count * 2),
                             .d_sum = part(d_x, first, count),
                             .d_weight = d_weight.view(),
                             .heads = count,
                             .kind = NormKind::rmsnorm});
  }

  static constexpr std::int64_t kSamples = 2, kTokens = 23;
  std::int64_t heads, columns;
  Tensor x, d, weight, out, d_x, stats, d_weight;
};

// Heads are rows of their own, wherever they lie; only their weights' gradients meet.
TEST(NormOfHeads, HasTheBitsOfEachHeadAlone) {
  for_devices_and_types([](Device& device, DType type) {
    for (const auto& [heads, columns] : {std::pair<std::int64_t, std::int64_t>{1, 9},
                                         {3, 1},
                                         {5, 6},
                                         {2, 128},
                                         {7, 40},
                                         {3, 600}}) {
      const HeadsCase together(type, heads, columns), alone(type, heads, columns);
      together.run_both(device, 0, heads);
      Numbers want(static_cast<std::size_t>(columns));
      for (std::int64_t h = 0; h < heads; ++h) {
        alone.run_both(device, h, 1);
        for (std::int64_t i = 0; i < columns; ++i)
          want[static_cast<std::size_t>(i)] += alone.d_weight[i];
      }
      EXPECT_TRUE(together.out.same_bits(alone.out));
      EXPECT_TRUE(together.d_x.same_bits(alone.d_x));
      // Both add the same products, each smaller than largest(d) sqrt(columns), in another order.
      const auto rows = static_cast<double>(HeadsCase::kSamples * HeadsCase::kTokens * heads);
      const double term = largest(together.d.numbers()) * std::sqrt(static_cast<double>(columns));
      expect_within(
          together.d_weight, want, [&](std::int64_t) { return 2 * rows * rows * 0x1p-24 * term; },
          "d_weight");
    }
  });
}

TEST(NormOfHeads, RefusesHeadsThatDoNotFit) {
  for_devices([](Device& device) {
    const HeadsCase c(DType::f32, 3, 5);
    AddNorm call{.resid = c.part(c.x, 0, 3),
                 .weight = c.weight.view(),
                 .out = c.part(c.out, 0, 3),
                 .stats = c.stats.view(),
                 .heads = 3};
    EXPECT_NO_THROW(run(device, call));
    call.heads = 4;
    EXPECT_THROW(run(device, call), InternalError);
    call.heads = 1;
    EXPECT_THROW(run(device, call), InternalError);
    call.heads = 3;
    call.pending = call.resid, call.sum = c.part(c.d_x, 0, 3);
    EXPECT_THROW(run(device, call), InternalError);
  });
}

/// What the elements of a tensor were multiplied with, once it is seen that they were.
Numbers factors_applied(Device& device, const Call& in, const Dropout& dropout) {
  const DType type = in.resid.view().type;
  Tensor out(type, {2, 9, 531}, 3);
  run(device, ApplyDropout{.x = in.resid.view(), .out = out.view(), .dropout = dropout});
  Numbers factors, want;
  for (std::int64_t i = 0; i < out.size(); ++i) {
    factors.push_back(dropout_factor(dropout, i / (9 * 531), i % (9 * 531)));
    want.push_back(factors.back() * in.resid[i]);
  }
  expect_within(
      out, want,
      [&](std::int64_t i) {
        return 0x1p-22 * std::abs(want[static_cast<std::size_t>(i)]) +
               write_error(type, want[static_cast<std::size_t>(i)]);
      },
      "out");
  return factors;
}

TEST(ApplyDropout, IsTheMaskOfTheForwardPass) {
  for_devices_and_types([](Device& device, DType type) {
    const Call in = make_call({2, 9, 531, 3, NormKind::layernorm, true, 0.3F}, type);
    const Numbers factors = factors_applied(device, in, in.dropout());
    const auto kept = std::ranges::count_if(factors, [](double f) { return f > 0; });
    // 9558 draws of probability 0.7: five standard deviations are 224.
    EXPECT_NEAR(static_cast<double>(kept), 0.7 * 9558, 224);
  });
}

// In place of a mask: numbers around 1, of the same bits on every device.
TEST(ApplyDropout, MultipliesWithJitter) {
  for_devices_and_types([](Device& device, DType type) {
    const Call in = make_call({2, 9, 531, 3, NormKind::layernorm, true, 0.3F}, type);
    Dropout jitter = in.dropout();
    jitter.p = 0, jitter.jitter = 0.25F;
    const Numbers factors = factors_applied(device, in, jitter);
    const auto [least, most] = std::ranges::minmax(factors);
    EXPECT_GE(least, 0.75);
    EXPECT_LE(most, 1.25);
    // Of 9558 numbers of standard deviation 1/2 / sqrt(12): five of their mean's are 0.0074. None
    // is within a hundredth of one end with a chance of 0.99^9558.
    EXPECT_NEAR(std::accumulate(factors.begin(), factors.end(), 0.0) / 9558, 1, 0.0074);
    EXPECT_LT(least, 0.755);
    EXPECT_GT(most, 1.245);
    const auto refused = [&](float p, float of_jitter) {
      jitter.p = p, jitter.jitter = of_jitter;
      const Tensor out(type, {2, 9, 531});
      const ApplyDropout call{.x = in.resid.view(), .out = out.view(), .dropout = jitter};
      EXPECT_THROW(run(device, call), InternalError);
    };
    refused(0.5F, 0.25F);
    refused(0, 1);
  });
}

TEST(AddPending, RefusesJitter) {
  for_devices([](Device& device) {
    const Call in = make_call({2, 9, 16, 3, NormKind::layernorm, true, 0.3F}, DType::f32);
    Tensor sum(DType::f32, {2, 9, 16});
    AddPending call{.resid = in.resid.view(), .pending = in.pending.view(), .sum = sum.view()};
    EXPECT_NO_THROW(run(device, call));
    call.dropout = in.dropout();
    call.dropout.p = 0, call.dropout.jitter = 0.1F;
    EXPECT_THROW(run(device, call), InternalError);
  });
}

TEST(AddPending, IsAddNormsSumToTheBit) {
  for_devices_and_types([](Device& device, DType type) {
    for (const Case& c : kCases) {
      const Call in = make_call(c, type);
      const std::vector<std::int64_t> shape = {c.samples, c.tokens, c.columns};
      Tensor sum(type, shape, c.gap), alone(type, shape, c.gap), out(type, shape),
          stats(DType::f32, {c.samples * c.tokens, 2});
      run(device, AddNorm{.resid = in.resid.view(),
                          .pending = in.pending.view(),
                          .weight = in.weight.view(),
                          .sum = sum.view(),
                          .out = out.view(),
                          .stats = stats.view(),
                          .kind = c.kind,
                          .dropout = in.dropout()});
      run(device, AddPending{.resid = in.resid.view(),
                             .pending = in.pending.view(),
                             .sum = alone.view(),
                             .dropout = in.dropout()});
      EXPECT_TRUE(alone.same_bits(sum));
      EXPECT_TRUE(alone.gaps_intact());
    }
  });
}

// A rank with some of the positions drops what a rank with all of them drops there.
TEST(Dropout, OfPartOfThePositionsIsThatOfTheWhole) {
  for_devices_and_types([](Device& device, DType type) {
    const std::int64_t samples = 2, tokens = 9, columns = 531, first = 2, count = 5;
    const Call in = make_call({samples, tokens, columns, 0, NormKind::layernorm, true, 0.3F}, type);
    const Tensor resid = positions_of(in.resid, first, count),
                 pending = positions_of(in.pending, first, count);
    Dropout dropout = in.dropout();
    const auto sums = [&](const Tensor& x, const Tensor& y, std::int64_t t) {
      std::vector<Tensor> all;
      for (int i = 0; i < 4; ++i) all.push_back(Tensor(type, {samples, t, columns}));
      const Tensor stats(DType::f32, {samples * t, 2});
      run(device, AddNorm{.resid = x.view(),
                          .pending = y.view(),
                          .weight = in.weight.view(),
                          .sum = all[0].view(),
                          .out = all[1].view(),
                          .stats = stats.view(),
                          .dropout = dropout});
      run(device,
          AddPending{
              .resid = x.view(), .pending = y.view(), .sum = all[2].view(), .dropout = dropout});
      run(device, ApplyDropout{.x = x.view(), .out = all[3].view(), .dropout = dropout});
      return all;
    };
    const auto whole = sums(in.resid, in.pending, tokens);
    dropout.first = first * columns;
    const auto part = sums(resid, pending, count);
    for (std::size_t i = 0; i < part.size(); ++i) {
      EXPECT_TRUE(part[i].same_bits(positions_of(whole[i], first, count))) << "output " << i;
    }
  });
}

// A rank with some of the columns drops what a rank with all of them drops there.
TEST(ApplyDropout, OfSomeColumnsIsThatOfTheWhole) {
  for_devices_and_types([](Device& device, DType type) {
    const std::int64_t columns = 531, first = 37, count = 203;
    const Call in = make_call({2, 9, columns, 0, NormKind::layernorm, true, 0.3F}, type);
    Tensor whole(type, {2, 9, columns}), part(type, {2, 9, count}, 3);
    ApplyDropout call{.x = in.resid.view(), .out = whole.view(), .dropout = in.dropout()};
    run(device, call);
    call.x = call.x.col_range(first, count), call.out = part.view();
    call.dropout.first += first, call.columns = columns;
    run(device, call);
    for (std::int64_t i = 0; i < part.size(); ++i)
      ASSERT_EQ(part[i], whole[i / count * columns + first + i % count]) << "element " << i;
    EXPECT_TRUE(part.gaps_intact());
    call.columns = count - 1;
    EXPECT_THROW(run(device, call), InternalError);
  });
}

// Group g's sums are those of a rank that has group g alone, also where chunks of rows span
// samples.
TEST(NormBackward, GroupsAreSummedAsIfAlone) {
  const std::int64_t samples = 3, tokens = 28, columns = 37;
  for_devices_and_types([&](Device& device, DType type) {
    const auto x = Tensor::random(type, {samples, tokens, columns}, 1),
               d_out = Tensor::random(type, {samples, tokens, columns}, 2),
               d_resid = Tensor::random(type, {samples, tokens, columns}, 3),
               weight = Tensor::random(type, {columns}, 4),
               stats = Tensor::random(DType::f32, {samples, tokens, 2}, 5);
    for (std::int64_t groups : {1, 2, 4, 28}) {
      for (Write write : {Write::overwrite, Write::add}) {
        const auto before = Tensor::random(DType::f32, {groups, columns}, 6);
        const Tensor d_weight = before.copy(), d_bias = before.copy(),
                     d_sum(type, {samples, tokens, columns});
        run(device, NormBackward{.d_out = d_out.view(),
                                 .d_resid = d_resid.view(),
                                 .sum = x.view(),
                                 .weight = weight.view(),
                                 .stats = stats.view(),
                                 .d_sum = d_sum.view(),
                                 .d_weight = d_weight.view(),
                                 .d_bias = d_bias.view(),
                                 .groups = groups,
                                 .write = write});
        const std::int64_t count = tokens / groups;
        for (std::int64_t g = 0; g < groups; ++g) {
          const auto part = [&](const Tensor& t) { return positions_of(t, g * count, count); };
          const Tensor part_x = part(x), part_d = part(d_out), part_resid = part(d_resid),
                       part_stats = part(stats), alone = before.copy(), alone_bias = before.copy(),
                       alone_sum(type, {samples, count, columns});
          run(device, NormBackward{.d_out = part_d.view(),
                                   .d_resid = part_resid.view(),
                                   .sum = part_x.view(),
                                   .weight = weight.view(),
                                   .stats = part_stats.view(),
                                   .d_sum = alone_sum.view(),
                                   .d_weight = alone.view().range(g * columns, columns),
                                   .d_bias = alone_bias.view().range(g * columns, columns),
                                   .write = write});
          EXPECT_TRUE(alone_sum.same_bits(part(d_sum)));
          for (std::int64_t i = g * columns; i < (g + 1) * columns; ++i) {
            ASSERT_EQ(d_weight[i], alone[i]) << groups << " groups, number " << g;
            ASSERT_EQ(d_bias[i], alone_bias[i]) << groups << " groups, number " << g;
          }
        }
      }
    }
  });
}

TEST(NormBackward, RefusesGroupsThatDoNotDivideThePositions) {
  for_devices([](Device& device) {
    const Tensor x(DType::f32, {2, 6, 4}), d_weight(DType::f32, {4, 4});
    EXPECT_THROW(device.scratch_bytes(NormBackward{
                     .d_out = x.view(), .sum = x.view(), .d_weight = d_weight.view(), .groups = 4}),
                 InternalError);
  });
}

}  // namespace
}  // namespace tessera::kernels::test
