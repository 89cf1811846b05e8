// LAMB over many steps against its formula in double: You et al. 2020, algorithm 2, but with eps
// under the root of the second moment and without bias correction.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/device.hpp"
#include "optim/optimizer.hpp"

namespace tessera::kernels {
namespace {

using optim::Optimizer, optim::StepScalars;

constexpr std::int64_t kElements = 4099;
constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEta = 1e-6, kDecay = 0.1;

template <typename T>
View view_of(std::vector<T>& v, std::int64_t begin, std::int64_t end) {
  return View(reinterpret_cast<std::byte*>(v.data() + begin), DTypeOf<T>::value, {end - begin});
}

struct LambReference {
  std::vector<double> x, m, v;
  double factor = 0;

  void step(const std::vector<float>& gradient, double decay, double lr,
            const std::array<double, 2>& trust) {
    std::vector<double> u(x.size());
    double of_x = 0, of_u = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto g = static_cast<double>(gradient[i]);
      m[i] = kBeta1 * m[i] + (1 - kBeta1) * g;
      v[i] = kBeta2 * v[i] + (1 - kBeta2) * g * g;
      u[i] = m[i] / std::sqrt(v[i] + kEta) + decay * x[i];
      of_x += x[i] * x[i], of_u += u[i] * u[i];
    }
    factor = of_x == 0 || of_u == 0
                 ? 1
                 : std::clamp(std::sqrt(of_x) / std::sqrt(of_u), trust[0], trust[1]);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] -= lr * factor * u[i];
  }
};

/// A tensor whose parts several ranks have.
struct LambTensor {
  std::vector<float> master = std::vector<float>(kElements), m = master, v = master;
  std::vector<bf16> parameter = std::vector<bf16>(kElements);

  /// Both passes over parts that end at `cuts`; only the parts' sums meet.
  void step(const Optimizer& optimizer, std::vector<float>& gradient, bool is_matrix, double lr,
            std::vector<std::int64_t> cuts, float apply = 1) {
    const auto device = make_cpu_device({});
    StepScalars numbers{};
    numbers[static_cast<std::size_t>(StepScalar::lr)] = static_cast<float>(lr);
    optimizer.set_scalars(numbers, 1);
    std::vector<float> scalars(numbers.begin(), numbers.end()), verdict{apply, 1};
    std::vector<std::int64_t> sums(static_cast<std::size_t>(optimizer.words_per_tensor));
    const auto pass = [&](const auto& call, auto& words) {
      std::int64_t begin = 0;
      for (const std::int64_t end : cuts) {
        const std::array state{view_of(m, begin, end), view_of(v, begin, end)};
        device->run(call({.gradient = view_of(gradient, begin, end),
                          .master = view_of(master, begin, end),
                          .parameter = view_of(parameter, begin, end),
                          .scalars = view_of(scalars, 0, std::ssize(scalars)),
                          .verdict = view_of(verdict, 0, std::ssize(verdict)),
                          .sums = view_of(words, 0, std::ssize(words)),
                          .state = state},
                         optimizer.terms_of("tensor", is_matrix ? optim::ParameterKind::matrix
                                                                : optim::ParameterKind::vector)));
        begin = end;
      }
    };
    pass(optimizer.first_pass, sums);
    pass(optimizer.update, sums);
  }
};

Optimizer optimizer_of(const std::array<double, 2>& trust) {
  return optim::make_optimizer({.name = deck::OptimizerName::lamb,
                                .betas = {{kBeta1, kBeta2}},
                                .eps = kEta,
                                .trust = trust,
                                .weight_decay = kDecay});
}

// A step moves an element by at most lr c |u| with |u| up to 1 / sqrt(1 - beta2) and rounds that a
// dozen times, and the weight twice. Gradients of 1e-4 and of 1 make the root of eta and of v rule.
TEST(Lamb, FollowsItsFormulaWhicheverRanksHaveTheParts) {
  constexpr int kSteps = 40;
  constexpr double kLr = 0.01;
  for (const bool is_matrix : {true, false}) {
    for (const std::array<double, 2>& trust :
         {std::array{0.01, 10.0}, std::array{0.5, 0.6}, std::array{3.0, 4.0}}) {
      const Optimizer optimizer = optimizer_of(trust);
      LambTensor whole, parts;
      std::mt19937 random{5};
      std::normal_distribution<float> normal;
      for (auto& x : whole.master) x = normal(random);
      parts.master = whole.master;
      LambReference reference{.x = {whole.master.begin(), whole.master.end()},
                              .m = std::vector<double>(kElements),
                              .v = std::vector<double>(kElements)};
      for (int t = 1; t <= kSteps; ++t) {
        std::vector<float> gradient(kElements);
        for (auto& g : gradient) g = (t % 2 == 0 ? 1.0F : 1e-4F) * normal(random);
        whole.step(optimizer, gradient, is_matrix, kLr, {kElements});
        parts.step(optimizer, gradient, is_matrix, kLr, {1, 17, 2048, 4000, kElements});
        reference.step(gradient, is_matrix ? kDecay : 0, kLr, trust);
      }
      EXPECT_EQ(whole.master, parts.master) << "other parts are other bits";
      for (std::size_t i = 0; i < whole.master.size(); ++i) {
        const double w = std::max(1.0, std::abs(reference.x[i]));
        ASSERT_NEAR(whole.master[i], reference.x[i],
                    kSteps * 0x1p-24 * (2 * w + 24 * kLr * trust[1] / std::sqrt(1 - kBeta2)));
        ASSERT_EQ(whole.parameter[i].bits, bf16(whole.master[i]).bits);
      }
    }
  }
}

// No norm, no factor: weights of 0 leave 0, and nothing that stands still becomes not-a-number.
TEST(Lamb, TakesAFactorOfOneWhereANormIsZero) {
  const Optimizer optimizer = optimizer_of({2.0, 4.0});
  LambTensor tensor;
  std::vector<float> gradient(kElements, 0.5F);
  tensor.step(optimizer, gradient, false, 0.25, {kElements});
  const double u = 0.05 / std::sqrt(0.05 * 0.25 + kEta);
  EXPECT_NEAR(tensor.master[7], -0.25 * u, 1e-6);
  LambTensor still;
  std::ranges::fill(still.master, 3.0F), std::ranges::fill(gradient, 0.0F);
  still.step(optimizer, gradient, false, 0.25, {kElements});
  EXPECT_EQ(still.master, std::vector<float>(kElements, 3.0F));
}

// Trap 39: of a skipped step only what forward reads is made anew.
TEST(Lamb, SkipsAStep) {
  LambTensor tensor;
  std::ranges::fill(tensor.master, 1.5F), std::ranges::fill(tensor.m, 0.25F);
  std::vector<float> gradient(kElements, std::numeric_limits<float>::quiet_NaN());
  const LambTensor before = tensor;
  tensor.step(optimizer_of({0.01, 10}), gradient, true, 1, {kElements}, 0);
  EXPECT_EQ(tensor.master, before.master);
  EXPECT_EQ(tensor.m, before.m);
  EXPECT_EQ(tensor.v, before.v);
  EXPECT_EQ(tensor.parameter.back().bits, bf16(1.5F).bits);
}

}  // namespace
}  // namespace tessera::kernels
