// Routers of mixtures of experts: choices, weights and their gradients, gates of two levels, and
// how evenly experts are chosen, against double.
#include "kernels/api/experts.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

struct Router {
  std::int64_t experts;
  Routing routing;
  bool bias = false;
};
const std::vector<Router> kRouters = {
    {1, {.choices = 1}},
    {4, {.choices = 1}},
    {8, {.choices = 2, .normalized = true}},
    {17, {.choices = 3, .scores = RouterScores::sigmoid, .normalized = true, .scale = 2.5F}, true},
    {33, {.choices = 5, .scale = 16, .groups = 3, .open_groups = 2}},
    {64,
     {.choices = 6,
      .scores = RouterScores::sigmoid,
      .normalized = true,
      .groups = 8,
      .open_groups = 4,
      .group_score = GroupScore::two_largest},
     true},
    {100, {.choices = 8, .scores = RouterScores::sigmoid}},
};
std::string name_of(const Router& r) {
  return fmt::format("{} of {} experts, {}", r.routing.choices, r.experts,
                     enum_word(r.routing.scores));
}

/// What a router makes of its logits, in double.
struct Routed {
  Numbers softmax, scores, shares;  // (E)
  double largest = -std::numeric_limits<double>::infinity(), lse = 0;

  Routed(const Routing& routing, const Numbers& logits) {
    for (const double x : logits) largest = std::max(largest, x);
    double sum = 0;
    for (const double x : logits) sum += std::exp(x - largest);
    lse = largest + std::log(sum);
    double all = 0;
    for (const double x : logits) {
      softmax.push_back(std::exp(x - lse));
      scores.push_back(routing.scores == RouterScores::softmax ? softmax.back()
                                                               : 1 / (1 + std::exp(-x)));
      all += scores.back();
    }
    for (const double s : scores) shares.push_back(s / all);
  }
};

/// Weights of the chosen, whose scores are given.
Numbers weights_of(const Routing& routing, const Numbers& scores) {
  const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
  Numbers weights;
  for (const double s : scores)
    weights.push_back(static_cast<double>(routing.scale) * (routing.normalized ? s / sum : s));
  return weights;
}

/// Roundings of a softmax, relative to it: of logit - max (exact where they are close, else half an
/// ulp of at most 2^7 in the exponent), e^x (2 ulp), the sum of positive terms in at most 32 parts
/// of E / 32 and 5 levels, its inverse and a product.
double score_error(std::int64_t experts, double largest_logit) {
  return 0x1p-24 * (8 + 2 * largest_logit + static_cast<double>(experts) / 32 + 5);
}

Numbers row_of(const Tensor& matrix, std::int64_t n) {
  const std::int64_t columns = matrix.view().cols();
  Numbers row;
  for (std::int64_t i = n * columns; i < (n + 1) * columns; ++i) row.push_back(matrix[i]);
  return row;
}

struct Case {
  Case(const Router& r, std::int64_t tokens, unsigned seed, double spread = 2)
      : logits(Tensor::random(DType::f32, {tokens, r.experts}, seed, spread, 3)),
        bias(Tensor::random(DType::f32, {r.experts}, seed + 1, 0.3)),
        experts(DType::i32, {tokens, r.routing.choices}),
        weights(DType::f32, {tokens, r.routing.choices}),
        stats(DType::f32, {tokens, kRouteStats}) {}

  void run(Device& device, const Router& r) {
    test::run(device, Route{.logits = logits.view(),
                            .bias = r.bias ? bias.view() : View(),
                            .experts = experts.view(),
                            .weights = weights.view(),
                            .stats = stats.view(),
                            .routing = r.routing});
  }
  /// Without terms.
  RouteBackward backward(const Router& r, const Tensor& d_weights, const Tensor& d_logits) const {
    return {.logits = logits.view(),
            .stats = stats.view(),
            .experts = experts.view(),
            .d_weights = d_weights.view(),
            .d_logits = d_logits.view(),
            .routing = r.routing};
  }
  Numbers logits_of(std::int64_t n) const { return row_of(logits, n); }
  /// Of each token's choices.
  void expect_different(const Router& r) const {
    for (std::int64_t n = 0; n < experts.view().rows(); ++n) {
      const Numbers choices = row_of(experts, n);
      const std::set<double> chosen(choices.begin(), choices.end());
      EXPECT_EQ(std::ssize(chosen), r.routing.choices);
      EXPECT_GE(*chosen.begin(), 0);
      EXPECT_LT(*chosen.rbegin(), static_cast<double>(r.experts));
    }
  }

  Tensor logits, bias, experts, weights, stats;
};

/// The keys by which experts are compared; minus infinity in groups that are closed.
Numbers open_keys(const Router& r, const Numbers& scores, const Tensor& bias) {
  Numbers keys = scores;
  for (std::int64_t e = 0; e < r.experts && r.bias; ++e)
    keys[static_cast<std::size_t>(e)] += bias[e];
  const auto groups = static_cast<std::size_t>(r.routing.groups), size = keys.size() / groups;
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t g = 0; g < groups; ++g) {
    Numbers of_group(keys.begin() + static_cast<std::ptrdiff_t>(g * size),
                     keys.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
    std::ranges::sort(of_group, std::greater());
    order.emplace_back(
        -(r.routing.group_score == GroupScore::largest ? of_group[0] : of_group[0] + of_group[1]),
        g);
  }
  std::ranges::sort(order);
  for (std::size_t i = static_cast<std::size_t>(r.routing.open_groups); i < groups; ++i) {
    for (std::size_t e = 0; e < size; ++e)
      keys[order[i].second * size + e] = -std::numeric_limits<double>::infinity();
  }
  return keys;
}

// Scores of random logits differ by far more than they err by, so the choice is that of doubles.
TEST(Route, ChoosesAndWeighsAsDoubleDoes) {
  for_devices([](Device& device) {
    for (const Router& r : kRouters) {
      SCOPED_TRACE(name_of(r));
      const std::int64_t tokens = 37, choices = r.routing.choices;
      Case c(r, tokens, 5);
      c.run(device, r);
      for (std::int64_t n = 0; n < tokens; ++n) {
        const Routed want(r.routing, c.logits_of(n));
        const Numbers keys = open_keys(r, want.scores, c.bias);
        std::vector<std::size_t> order(keys.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return keys[a] > keys[b]; });
        Numbers scores;
        for (std::int64_t k = 0; k < choices; ++k) {
          const auto best = static_cast<double>(order[static_cast<std::size_t>(k)]);
          ASSERT_EQ(c.experts[n * choices + k], best) << "token " << n << ", choice " << k;
          scores.push_back(want.scores[order[static_cast<std::size_t>(k)]]);
        }
        const Numbers weights = weights_of(r.routing, scores);
        // Of normalised ones also a sum of K terms that err as much, and a quotient.
        const double error = score_error(r.experts, std::abs(want.largest)) * 2 +
                             0x1p-24 * static_cast<double>(choices + 3);
        for (std::int64_t k = 0; k < choices; ++k) {
          const double w = weights[static_cast<std::size_t>(k)];
          EXPECT_NEAR(c.weights[n * choices + k], w, error * w);
        }
      }
    }
  });
}

Tensor one_number(double x) {
  Tensor t(DType::f32, {1});
  t.set(0, x);
  return t;
}

/// Some number of choices for each expert, different ones from sample to sample.
Tensor some_counts(std::int64_t samples, std::int64_t experts) {
  Tensor counts(DType::f32, {samples, experts});
  for (std::int64_t i = 0; i < counts.size(); ++i) counts.set(i, static_cast<double>(i * i % 13));
  return counts;
}

// Where the scores of all that are chosen are 0 in f32, weights and gradients still are numbers.
TEST(Route, LeavesNumbersOfScoresThatVanish) {
  for_devices([&](Device& device) {
    for (const Router& r : kRouters) {
      SCOPED_TRACE(name_of(r));
      Case c(r, 3, 5);
      for (std::int64_t e = 0; e < r.experts; ++e) {
        c.logits.set(e, e == 0 ? 200 : 0), c.bias.set(e, e == 0 ? 0 : 2);
        c.logits.set(r.experts + e, -200), c.logits.set(2 * r.experts + e, 200);
      }
      c.run(device, r);
      const auto d_weights = Tensor::random(DType::f32, {3, r.routing.choices}, 3);
      const Tensor counts = some_counts(1, r.experts), scale = one_number(2);
      const Tensor d_logits(DType::f32, {3, r.experts});
      RouteBackward call = c.backward(r, d_weights, d_logits);
      call.counts = counts.view(), call.scale = scale.view();
      call.terms = {.balance = 1, .z = 0.25F};
      run(device, call);
      for (const Tensor* t : std::initializer_list<const Tensor*>{&c.weights, &d_logits})
        EXPECT_TRUE(std::ranges::all_of(t->numbers(), [](double x) { return std::isfinite(x); }));
    }
  });
}

TEST(Route, ChoosesDifferentExpertsWhateverLogitsAre) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                   kInfinity = std::numeric_limits<double>::infinity();
  for_devices([&](Device& device) {
    for (const Router& r : kRouters) {
      SCOPED_TRACE(name_of(r));
      for (const double x : {kNan, -kInfinity, kInfinity, 0.0, -0.0}) {
        Case c(r, 3, 5);
        for (std::int64_t i = 0; i < c.logits.size(); ++i) {
          if (i / r.experts == 0 || i % 3 == 0) c.logits.set(i, x);
        }
        c.run(device, r);
        c.expect_different(r);
      }
    }
  });
}

const std::vector<Router> kGates = {
    {4, {.choices = 4, .groups = 2, .open_groups = 2}},
    {9, {.choices = 4, .groups = 3, .open_groups = 2}},
    {40, {.choices = 3, .groups = 8, .open_groups = 3}},
    {kMostExperts, {.choices = kMostChoices, .groups = kMostGroups, .open_groups = 8}},
};

/// The `keep` largest of some logits, in order.
std::vector<std::size_t> largest_of(const Numbers& logits, std::int64_t keep) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  order.resize(static_cast<std::size_t>(keep));
  return order;
}

/// What two levels of gates make of a token's logits, in double.
Numbers joined_gates(const Router& r, const Numbers& logits) {
  const auto experts = static_cast<std::size_t>(r.experts),
             size = experts / static_cast<std::size_t>(r.routing.groups);
  Numbers joined(experts, -std::numeric_limits<double>::infinity());
  const Numbers groups(logits.begin() + r.experts, logits.end());
  for (const std::size_t g : largest_of(groups, r.routing.open_groups)) {
    const auto first = logits.begin() + static_cast<std::ptrdiff_t>(g * size);
    const Numbers of_group(first, first + static_cast<std::ptrdiff_t>(size));
    const auto kept = largest_of(of_group, r.routing.choices / r.routing.open_groups);
    double sum = 0;
    for (const std::size_t i : kept) sum += std::exp(of_group[i]);
    for (const std::size_t i : kept) joined[g * size + i] = groups[g] + of_group[i] - std::log(sum);
  }
  return joined;
}

// Logits differ by far more than nothing, so what is kept is the same. Roundings: of differences
// and sums of three numbers below 16, and of the logarithm of a sum of at most 32 exponentials.
TEST(JoinGates, KeepsAndJoinsAsDoubleDoes) {
  for_devices([](Device& device) {
    for (const Router& r : kGates) {
      SCOPED_TRACE(name_of(r));
      const std::int64_t tokens = 37, columns = r.experts + r.routing.groups;
      const auto logits = Tensor::random(DType::f32, {tokens, columns}, 5, 2, 3);
      const Tensor joined(DType::f32, {tokens, r.experts}, 5);
      run(device,
          JoinGates{.logits = logits.view(), .joined = joined.view(), .routing = r.routing});
      for (std::int64_t n = 0; n < tokens; ++n) {
        const Numbers want = joined_gates(r, row_of(logits, n));
        for (std::int64_t e = 0; e < r.experts; ++e) {
          const double x = want[static_cast<std::size_t>(e)], got = joined[n * r.experts + e];
          if (std::isinf(x)) {
            ASSERT_EQ(got, x) << "token " << n << ", expert " << e;
          } else {
            ASSERT_NEAR(got, x, 0x1p-24 * (4 * 16 + 40)) << "token " << n << ", expert " << e;
          }
        }
      }
    }
  });
}

TEST(JoinGates, GradientsAreThoseOfDifferences) {
  for_devices([](Device& device) {
    for (const Router& r : kGates) {
      if (r.experts == kMostExperts) continue;  // differences of so many would take long
      SCOPED_TRACE(name_of(r));
      const std::int64_t tokens = 5, columns = r.experts + r.routing.groups;
      const auto logits = Tensor::random(DType::f32, {tokens, columns}, 6, 2),
                 d_joined = Tensor::random(DType::f32, {tokens, r.experts}, 7);
      const Tensor joined(DType::f32, {tokens, r.experts}), d(DType::f32, {tokens, columns}, 3);
      run(device,
          JoinGates{.logits = logits.view(), .joined = joined.view(), .routing = r.routing});
      run(device, JoinGatesBackward{.joined = joined.view(),
                                    .d_joined = d_joined.view(),
                                    .d_logits = d.view(),
                                    .routing = r.routing});
      Numbers want;
      double size = 0;
      for (std::int64_t n = 0; n < tokens; ++n) {
        const auto objective = [&](const Numbers& at) {
          const Numbers made = joined_gates(r, at);
          double sum = 0;
          for (std::int64_t e = 0; e < r.experts; ++e) {
            const double x = made[static_cast<std::size_t>(e)];
            if (std::isfinite(x)) sum += d_joined[n * r.experts + e] * x;
          }
          return sum;
        };
        for (const double slope : numeric_gradient(objective, row_of(logits, n)))
          want.push_back(slope);
      }
      for (const double x : d_joined.numbers()) size = std::max(size, std::abs(x));
      // A softmax of a few, as score_error says, times the sum of a few gradients.
      const double error = (score_error(8, 8) + 1e-7) * 8 * size;
      expect_within(
          d, want, [&](std::int64_t) { return error; }, "d_logits");
    }
  });
}

// A gate keeps as many as it should, and the choice that follows is of different experts.
TEST(JoinGates, KeepsDifferentExpertsWhateverLogitsAre) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                   kInfinity = std::numeric_limits<double>::infinity();
  for_devices([&](Device& device) {
    for (const Router& r : kGates) {
      SCOPED_TRACE(name_of(r));
      for (const double x : {kNan, -kInfinity, kInfinity, 0.0, -300.0}) {
        auto logits = Tensor::random(DType::f32, {3, r.experts + r.routing.groups}, 5);
        for (std::int64_t i = 0; i < logits.size(); ++i)
          if (i < r.experts || i % 3 == 0) logits.set(i, x);
        const Router joined{r.experts, {.choices = r.routing.choices}};
        Case c(joined, 3, 5);
        run(device,
            JoinGates{.logits = logits.view(), .joined = c.logits.view(), .routing = r.routing});
        c.run(device, joined);
        c.expect_different(joined);
      }
    }
  });
}

// However far the logits of what is kept are apart, which weighs next to nothing then, no expert is
// chosen that a gate has closed.
TEST(JoinGates, WhatIsClosedIsNeverChosen) {
  for_devices([](Device& device) {
    for (const Router& r : kGates) {
      SCOPED_TRACE(name_of(r));
      const std::int64_t tokens = 20;
      const auto logits =
          Tensor::random(DType::f32, {tokens, r.experts + r.routing.groups}, 5, 300);
      const Router joined{r.experts, {.choices = r.routing.choices}};
      Case c(joined, tokens, 5);
      run(device,
          JoinGates{.logits = logits.view(), .joined = c.logits.view(), .routing = r.routing});
      c.run(device, joined);
      for (std::int64_t i = 0; i < tokens * r.routing.choices; ++i) {
        const std::int64_t n = i / r.routing.choices, e = std::lround(c.experts[i]);
        EXPECT_TRUE(std::isfinite(c.logits[n * r.experts + e]))
            << "token " << n << ", expert " << e;
        EXPECT_GT(c.weights[i], 0);
      }
    }
  });
}

constexpr std::int64_t kTokensPerSample = 3;
constexpr double kScale = 3;  // of the terms

/// Which gradient is computed, and what is minimised for a token of it: weights, and the terms.
struct Objective {
  const Router& router;
  RouterTerms terms;
  std::vector<std::size_t> chosen;
  Numbers d_weights, counts;  // of the sample's choices

  double operator()(const Numbers& logits) const {
    const Routed row(router.routing, logits);
    Numbers scores;
    for (const std::size_t e : chosen) scores.push_back(row.scores[e]);
    const Numbers weights = weights_of(router.routing, scores);
    double balance = 0, all = kScale * static_cast<double>(terms.z) * row.lse * row.lse;
    for (std::size_t k = 0; k < chosen.size(); ++k) all += d_weights[k] * weights[k];
    for (std::size_t e = 0; e < counts.size(); ++e) balance += counts[e] * row.shares[e];
    return all + kScale * static_cast<double>(terms.balance) * balance;
  }
  /// At least the sizes of all that is added up to a slope, where |lse| is at most 8.
  double size() const {
    double all = kScale * static_cast<double>(terms.z) * 2 * 8;
    for (const double d : d_weights)
      all += 2 * std::abs(d) * static_cast<double>(router.routing.scale);
    for (const double count : counts)
      all += 2 * kScale * static_cast<double>(terms.balance) * count;
    return all;
  }
};

Objective objective_of(const Router& r, const RouterTerms& terms, const Case& c, std::int64_t n,
                       const Tensor& d_weights, const Tensor& counts) {
  Objective o{r, terms, {}, {}, {}};
  for (std::int64_t k = n * r.routing.choices; k < (n + 1) * r.routing.choices; ++k) {
    o.chosen.push_back(static_cast<std::size_t>(c.experts[k]));
    o.d_weights.push_back(d_weights[k]);
  }
  const std::int64_t first = n / kTokensPerSample * r.experts;
  for (std::int64_t e = 0; e < r.experts; ++e) o.counts.push_back(counts[first + e]);
  return o;
}

// By differences, whose error is about 1e-8 of the largest slope; what is computed errs by a few
// roundings of terms whose sizes add up to at most `size`.
TEST(Route, GradientsAreThoseOfDifferences) {
  for_devices([](Device& device) {
    for (const Router& r : kRouters) {
      const std::int64_t samples = 2, tokens = samples * kTokensPerSample;
      Case c(r, tokens, 9, 1);
      c.run(device, r);
      const auto d_weights = Tensor::random(DType::f32, {tokens, r.routing.choices}, 3);
      const Tensor counts = some_counts(samples, r.experts), scale = one_number(kScale);
      for (const RouterTerms terms :
           {RouterTerms{}, {.balance = 0.03F}, {.z = 0.25F}, {.balance = 0.02F, .z = 0.125F}}) {
        SCOPED_TRACE(fmt::format("{}, terms {} and {}", name_of(r), terms.balance, terms.z));
        Tensor d_logits(DType::f32, {tokens, r.experts}, 5);
        RouteBackward call = c.backward(r, d_weights, d_logits);
        call.terms = terms;
        if (terms.balance > 0) call.counts = counts.view();
        if (terms) call.scale = scale.view();
        run(device, call);
        Numbers want, size;
        for (std::int64_t n = 0; n < tokens; ++n) {
          const Objective objective = objective_of(r, terms, c, n, d_weights, counts);
          for (const double slope : numeric_gradient(objective, c.logits_of(n)))
            want.push_back(slope), size.push_back(objective.size());
        }
        const double error = score_error(r.experts, 8) * 4 + 1e-7;
        expect_within(
            d_logits, want,
            [&](std::int64_t i) { return error * size[static_cast<std::size_t>(i)]; }, "d_logits");
      }
    }
  });
}

// Without them a kernel would read what is not there.
TEST(Route, RefusesTermsWithoutWhatTheyTake) {
  const auto device = make_cpu_device({.threads = 1});
  const Router r = kRouters[2];
  Case c(r, 4, 1);
  c.run(*device, r);
  const Tensor d_weights(DType::f32, {4, r.routing.choices}), d_logits(DType::f32, {4, r.experts});
  const Tensor counts = some_counts(2, r.experts), scale = one_number(1);
  const auto refused = [&](const RouterTerms& terms, const View& of_samples, const View& by) {
    RouteBackward call = c.backward(r, d_weights, d_logits);
    call.terms = terms, call.counts = of_samples, call.scale = by;
    try {
      run(*device, call);
    } catch (const InternalError&) {
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refused({}, {}, {}));
  EXPECT_FALSE(refused({.balance = 1, .z = 1}, counts.view(), scale.view()));
  EXPECT_FALSE(refused({.z = 1}, {}, scale.view()));
  EXPECT_TRUE(refused({.balance = 1}, {}, scale.view())) << "no counts";
  EXPECT_TRUE(refused({.balance = 1}, counts.view(), {})) << "no scale";
  EXPECT_TRUE(refused({.z = 1}, {}, {})) << "no scale";
  EXPECT_TRUE(refused({.balance = -1}, counts.view(), scale.view())) << "below 0";
  EXPECT_TRUE(refused({.z = -1}, {}, scale.view())) << "below 0";
  EXPECT_TRUE(refused({.balance = 1}, some_counts(3, r.experts).view(), scale.view()))
      << "3 samples of 4 tokens";
}

TEST(ExpertLoad, CountsChoicesAndMeansShares) {
  for_devices([](Device& device) {
    for (const Router& r : kRouters) {
      SCOPED_TRACE(name_of(r));
      const std::int64_t samples = 3, each = 37, choices = r.routing.choices;
      Case c(r, samples * each, 2);
      c.run(device, r);
      Tensor counts(DType::f32, {samples, r.experts}), shares(DType::f32, {samples, r.experts});
      run(device, ExpertLoad{.logits = c.logits.view(),
                             .stats = c.stats.view(),
                             .experts = c.experts.view(),
                             .counts = counts.view(),
                             .shares = shares.view(),
                             .routing = r.routing});
      Numbers want_counts(static_cast<std::size_t>(samples * r.experts)),
          want_shares(want_counts.size());
      double largest_logit = 0;
      for (std::int64_t n = 0; n < samples * each; ++n) {
        const auto first = static_cast<std::size_t>(n / each * r.experts);
        for (std::int64_t k = 0; k < choices; ++k)
          ++want_counts[first + static_cast<std::size_t>(c.experts[n * choices + k])];
        const Routed row(r.routing, c.logits_of(n));
        largest_logit = std::max(largest_logit, std::abs(row.largest));
        for (std::size_t e = 0; e < row.shares.size(); ++e)
          want_shares[first + e] += row.shares[e] / static_cast<double>(each);
      }
      EXPECT_EQ(counts.numbers(), want_counts);
      const double error = 2 * score_error(r.experts, largest_logit) + 0x1p-24 * (each / 16.0 + 8);
      expect_within(
          shares, want_shares,
          [&](std::int64_t i) { return error * want_shares[static_cast<std::size_t>(i)]; },
          "shares");
    }
  });
}

}  // namespace
}  // namespace tessera::kernels::test
