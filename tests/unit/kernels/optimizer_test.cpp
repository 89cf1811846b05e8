#include <limits>

#include "core/exact_sum.hpp"
#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

struct Scalars {
  Tensor scalars{DType::f32, {static_cast<std::int64_t>(StepScalar::count)}};
  Tensor verdict{DType::f32, {static_cast<std::int64_t>(VerdictField::count)}};

  void set(StepScalar s, double x) { scalars.set(static_cast<std::int64_t>(s), x); }
  double get(StepScalar s) const { return scalars[static_cast<std::int64_t>(s)]; }
  void set(VerdictField f, double x) { verdict.set(static_cast<std::int64_t>(f), x); }
  double get(VerdictField f) const { return verdict[static_cast<std::int64_t>(f)]; }
};

struct State {
  Tensor gradient, master, m, v, parameter;
};
State make_state(DType gradient, DType parameter, std::int64_t n) {
  State s{.gradient = Tensor::random(gradient, {n}, 1),
          .master = Tensor::random(DType::f32, {n}, 2),
          .m = Tensor::random(DType::f32, {n}, 3, 0.1),
          .v = Tensor::random(DType::f32, {n}, 4, 0.1),
          .parameter = Tensor(parameter, {n})};
  for (std::int64_t i = 0; i < n; ++i) s.v.set(i, s.v[i] * s.v[i]);
  return s;
}
OptimizerUpdate call_of(const State& s, const Scalars& k) {
  return {.gradient = s.gradient.view(),
          .master = s.master.view(),
          .state = {s.m.view(), s.v.view()},
          .parameter = s.parameter.view(),
          .scalars = k.scalars.view(),
          .verdict = k.verdict.view(),
          .settings = {.decay = 0.1F}};
}

TEST(OptimizerUpdate, AgreesWithDouble) {
  for_devices_and_types([](Device& device, DType type) {
    for (auto decay : {Decay::decoupled, Decay::l2}) {
      for (std::int64_t n : {1, 17, 10007}) {
        Scalars k;
        k.set(StepScalar::lr, 1e-2);
        k.set(StepScalar::bias_correction1, 0.271);
        k.set(StepScalar::bias_correction2, 0.1426);
        k.set(VerdictField::apply, 1);
        k.set(VerdictField::coefficient, 0.5);
        const State s = make_state(type, type, n);
        const Numbers w0 = s.master.numbers(), m0 = s.m.numbers(), v0 = s.v.numbers();
        OptimizerUpdate call = call_of(s, k);
        call.settings.decay_kind = decay;
        run(device, call);
        Numbers want_w, want_m, want_v, g_size;
        const double b1 = call.settings.beta1, b2 = call.settings.beta2, lr = k.get(StepScalar::lr);
        for (std::size_t i = 0; i < w0.size(); ++i) {
          const bool l2 = decay == Decay::l2;
          const double d = call.settings.decay;
          const double g = 0.5 * s.gradient[static_cast<std::int64_t>(i)] + (l2 ? d * w0[i] : 0);
          want_m.push_back(b1 * m0[i] + (1 - b1) * g);
          want_v.push_back(b2 * v0[i] + (1 - b2) * g * g);
          const double denominator =
              std::sqrt(want_v[i]) / std::sqrt(k.get(StepScalar::bias_correction2)) +
              static_cast<double>(call.settings.eps);
          want_w.push_back(w0[i] * (l2 ? 1 : 1 - lr * d) -
                           lr / k.get(StepScalar::bias_correction1) * want_m[i] / denominator);
          g_size.push_back(std::abs(g) + std::abs(0.1 * w0[i]));
        }
        // Each line is a handful of roundings of terms of the sizes below.
        const double u = 0x1p-24;
        const auto at = [](const Numbers& x, std::int64_t i) {
          return x[static_cast<std::size_t>(i)];
        };
        const auto m_bound = [&](std::int64_t i) {
          return 6 * u * (std::abs(at(m0, i)) + at(g_size, i));
        };
        expect_within(s.m, want_m, m_bound, "m");
        expect_within(
            s.v, want_v,
            [&](std::int64_t i) { return 8 * u * (at(v0, i) + at(g_size, i) * at(g_size, i)); },
            "v");
        const auto w_bound = [&](std::int64_t i) {
          const double step = std::abs(at(want_w, i) - at(w0, i));
          const double m_relative = m_bound(i) / (std::abs(at(want_m, i)) + 1e-30);
          return 4 * u * std::abs(at(w0, i)) + step * (16 * u + m_relative) +
                 16 * u * lr * std::abs(at(w0, i));
        };
        expect_within(s.master, want_w, w_bound, "master");
        expect_within(
            s.parameter, s.master.numbers(),
            [&](std::int64_t i) { return write_error(type, s.master[i]); }, "parameter");
      }
    }
  });
}

// So many go past the caches of a CPU.
TEST(OptimizerUpdate, ManyParametersAreTheRoundedMasters) {
  constexpr std::int64_t kElements = 1'100'003;
  Scalars k;
  k.set(StepScalar::lr, 1e-2);
  for (const StepScalar s : {StepScalar::bias_correction1, StepScalar::bias_correction2})
    k.set(s, 1);
  k.set(VerdictField::apply, 1);
  k.set(VerdictField::coefficient, 1);
  for (const DType type : kTypes) {
    State s = make_state(DType::f32, type, kElements);
    for (const Isa isa : isas()) {
      for (std::int64_t i = 0; i < kElements; ++i) s.parameter.set(i, 0);
      run(*make_cpu_device({.threads = 3, .isa = isa}), call_of(s, k));
      Tensor want(type, {kElements});
      for (std::int64_t i = 0; i < kElements; ++i) want.set(i, s.master[i]);
      EXPECT_TRUE(s.parameter.same_bits(want)) << enum_word(isa) << ' ' << to_string(type);
    }
  }
}

// Of the terms' roundings those of keep, of its product and of the result count in units of w;
// those of a root, a sum, a quotient, the rate and a product in units of the step.
TEST(OptimizerUpdate, FrozenAdamMovesByStateThatStays) {
  for_devices_and_types([](Device& device, DType type) {
    for (DType moments : {DType::f32, DType::bf16}) {
      for (std::int64_t n : {1, 17, 10007}) {
        Scalars k;
        k.set(StepScalar::lr, 1e-2);
        k.set(VerdictField::apply, 1);
        k.set(VerdictField::coefficient, std::numeric_limits<double>::quiet_NaN());  // of no use
        State s = make_state(DType::f32, type, n);
        Tensor m(moments, {n}), v(moments, {n});
        for (std::int64_t i = 0; i < n; ++i) m.set(i, s.m[i]), v.set(i, s.v[i]);
        const Tensor m_before = m.copy(), v_before = v.copy(), w = s.master.copy(),
                     average = Tensor::random(DType::f32, {n}, 5), average_before = average.copy();
        OptimizerUpdate call = call_of(s, k);
        call.rule = UpdateRule::frozen_adam;
        call.gradient = {}, call.state = {m.view(), v.view()}, call.average = average.view();
        call.settings.average_decay = 0.75F;
        run(device, call);
        Numbers want;
        const double u = 0x1p-24, lr = k.get(StepScalar::lr),
                     decay = static_cast<double>(call.settings.decay),
                     eps = static_cast<double>(call.settings.eps);
        const auto step = [&](std::int64_t i) { return lr * m[i] / (std::sqrt(v[i]) + eps); };
        for (std::int64_t i = 0; i < n; ++i) want.push_back(w[i] * (1 - lr * decay) - step(i));
        expect_within(
            s.master, want,
            [&](std::int64_t i) { return 4 * u * std::abs(w[i]) + 8 * u * std::abs(step(i)); },
            "master");
        Numbers averages;
        for (std::int64_t i = 0; i < n; ++i)
          averages.push_back(0.75 * average_before[i] + 0.25 * s.master[i]);
        expect_within(
            average, averages,
            [&](std::int64_t i) {
              return 4 * u * (std::abs(average_before[i]) + std::abs(s.master[i]));
            },
            "average");
        expect_within(
            s.parameter, s.master.numbers(),
            [&](std::int64_t i) { return write_error(type, s.master[i]); }, "parameter");
        EXPECT_TRUE(m.same_bits(m_before));
        EXPECT_TRUE(v.same_bits(v_before));
        call.gradient = s.gradient.view();
        EXPECT_THROW(run(device, call), InternalError) << "by a gradient";
        k.set(VerdictField::apply, 0);
        const Tensor moved = s.master.copy();
        call.gradient = {};
        run(device, call);
        EXPECT_TRUE(s.master.same_bits(moved)) << "in a step that is skipped";
      }
    }
  });
}

/// After `steps` updates by a gradient of 1 with m = v = 0 at first, on average over n elements.
std::pair<double, double> means_after(Device& device, DType type, int steps, std::int64_t n) {
  Scalars k;
  for (const StepScalar s : {StepScalar::bias_correction1, StepScalar::bias_correction2})
    k.set(s, 1);
  k.set(StepScalar::lr, 1e-4);
  k.set(VerdictField::apply, 1);
  k.set(VerdictField::coefficient, 1);
  const State s = make_state(DType::f32, DType::f32, n);
  Tensor ones(DType::f32, {n}), m(type, {n}), v(type, {n});
  for (std::int64_t i = 0; i < n; ++i) ones.set(i, 1);
  OptimizerUpdate call = call_of(s, k);
  call.gradient = ones.view();
  call.state = {m.view(), v.view()};
  call.settings.beta1 = 0.99F, call.settings.beta2 = 0.999F;
  for (int i = 0; i < steps; ++i) run(device, call);
  double of_m = 0, of_v = 0;
  for (std::int64_t i = 0; i < n; ++i) of_m += m[i], of_v += v[i];
  return {of_m / static_cast<double>(n), of_v / static_cast<double>(n)};
}

// Rounding at random is right on average. Rounded to nearest, v would stop at 0.25, from where on a
// step adds less than half of a unit in the last place (2^-10 at a beta2 of 0.999).
TEST(OptimizerUpdate, RoundsMomentsOf16BitsAtRandom) {
  for_devices([](Device& device) {
    constexpr int kSteps = 1000;
    constexpr std::int64_t kElements = 4096;
    const auto [m, v] = means_after(device, DType::bf16, kSteps, kElements);
    // Each rounding is wrong by less than 2^-8 of the moment, at most 1, with mean 0; those of the
    // last 1 / (1 - beta) steps count: 10 and 32 roundings' worth in the root of the sum of
    // squares. Five standard deviations of the mean over the elements.
    const double deviation = 5 * 0x1p-8 / std::sqrt(static_cast<double>(kElements));
    EXPECT_NEAR(m, 1 - std::pow(0.99, kSteps), 10 * deviation);
    EXPECT_NEAR(v, 1 - std::pow(0.999, kSteps), 32 * deviation);
  });
}

// What nothing moves any more decays all the same: chance is another one in each step.
TEST(OptimizerUpdate, RoundsWhatStandsStillAnewInEachStep) {
  for_devices([](Device& device) {
    constexpr std::int64_t kElements = 4096;
    constexpr int kSteps = 2000;
    Scalars k;
    for (const StepScalar s : {StepScalar::bias_correction1, StepScalar::bias_correction2})
      k.set(s, 1);
    k.set(VerdictField::apply, 1);
    State s = make_state(DType::f32, DType::f32, kElements);
    Tensor m(DType::bf16, {kElements}), v(DType::bf16, {kElements});
    for (std::int64_t i = 0; i < kElements; ++i) m.set(i, 0), v.set(i, 1), s.gradient.set(i, 0);
    OptimizerUpdate call = call_of(s, k);
    call.state = {m.view(), v.view()};
    call.settings.beta2 = 0.999F, call.settings.decay = 0;
    for (int t = 1; t <= kSteps; ++t) {
      k.set(StepScalar::chance, t);
      run(device, call);
    }
    double mean = 0;
    for (std::int64_t i = 0; i < kElements; ++i) mean += v[i] / kElements;
    // Each of the roundings is wrong by less than 2^-7 of v, at most 1, with mean 0; what they add
    // up to decays too. Five standard deviations of the mean.
    EXPECT_NEAR(mean, std::pow(0.999, kSteps),
                5 * 0x1p-7 * std::sqrt(kSteps) / std::sqrt(kElements));
  });
}

// A moment is rounded to one of its two neighbours, in proportion to how near they are.
TEST(OptimizerUpdate, RoundsToANeighbour) {
  for_devices([](Device& device) {
    constexpr std::int64_t kElements = 20000;
    Scalars k;
    for (const StepScalar s : {StepScalar::bias_correction1, StepScalar::bias_correction2})
      k.set(s, 1);
    k.set(StepScalar::lr, 1e-3);
    k.set(VerdictField::apply, 1);
    k.set(VerdictField::coefficient, 1);
    State s = make_state(DType::f32, DType::f32, kElements);
    Tensor m(DType::bf16, {kElements}), v(DType::bf16, {kElements});
    for (std::int64_t i = 0; i < kElements; ++i) m.set(i, 1), v.set(i, 1), s.gradient.set(i, 1.25);
    OptimizerUpdate call = call_of(s, k);
    call.state = {m.view(), v.view()};
    call.settings.beta1 = 0.99F, call.settings.beta2 = 0.999F;
    run(device, call);
    // m becomes 1.0025 and v 1.0005625, between 1 and 1 + 2^-7.
    int m_up = 0, v_up = 0;
    for (std::int64_t i = 0; i < kElements; ++i) {
      ASSERT_TRUE(m[i] == 1 || m[i] == 1 + 0x1p-7) << m[i];
      ASSERT_TRUE(v[i] == 1 || v[i] == 1 + 0x1p-7) << v[i];
      m_up += m[i] > 1 ? 1 : 0, v_up += v[i] > 1 ? 1 : 0;
    }
    const auto expect_share = [](int up, double share) {
      const double mean = kElements * share, deviation = std::sqrt(mean * (1 - share));
      EXPECT_NEAR(up, mean, 5 * deviation);
    };
    expect_share(m_up, 0.0025 * 128);
    expect_share(v_up, 0.0005625 * 128);
  });
}

// What forward reads may be elsewhere than where it lives, so it is written in a skipped step too.
TEST(OptimizerUpdate, ASkippedStepChangesNothing) {
  for_devices([](Device& device) {
    Scalars k;
    k.set(VerdictField::coefficient, std::numeric_limits<double>::quiet_NaN());
    const State s = make_state(DType::f32, DType::bf16, 1003);
    State before = make_state(DType::f32, DType::bf16, 1003);
    for (std::int64_t i = 0; i < 1003; ++i) before.parameter.set(i, before.master[i]);
    run(device, call_of(s, k));
    EXPECT_TRUE(s.master.same_bits(before.master));
    EXPECT_TRUE(s.m.same_bits(before.m));
    EXPECT_TRUE(s.v.same_bits(before.v));
    EXPECT_TRUE(s.parameter.same_bits(before.parameter));
  });
}

double coefficient(Device& device, double sum, double unscale, double clip, double* apply) {
  std::array<std::int64_t, kExactSumWords> words{};
  if (std::isnan(sum)) {
    words[kExactSumNan] = 1;
  } else if (std::isinf(sum)) {
    words[kExactSumInf] = 1;
  } else {
    exact_add(words, sum);
  }
  Scalars k;
  k.set(StepScalar::unscale, unscale);
  run(device, Verdict{.squares = View(reinterpret_cast<std::byte*>(words.data()), DType::i64,
                                      {kExactSumWords}),
                      .scalars = k.scalars.view(),
                      .verdict = k.verdict.view(),
                      .clip_norm = clip});
  *apply = k.get(VerdictField::apply);
  return k.get(VerdictField::coefficient);
}

TEST(Verdict, UnscalesClipsAndSkips) {
  for_devices([](Device& device) {
    double apply = 0;
    EXPECT_FLOAT_EQ(coefficient(device, 16, 0.5, 1, &apply), 0.5 / (2 + 1e-6));  // norm 2
    EXPECT_EQ(apply, 1);
    EXPECT_EQ(coefficient(device, 16, 0.5, 4, &apply), 0.5);  // below the limit
    EXPECT_EQ(coefficient(device, 16, 0.5, 0, &apply), 0.5);  // no limit
    EXPECT_EQ(coefficient(device, 0, 0.5, 1, &apply), 0.5);
    EXPECT_EQ(apply, 1);
    for (double bad : {std::numeric_limits<double>::quiet_NaN(),
                       std::numeric_limits<double>::infinity()}) {  // trap 40
      coefficient(device, bad, 0.5, 1, &apply);
      EXPECT_EQ(apply, 0);
    }
  });
}

}  // namespace
}  // namespace tessera::kernels::test
