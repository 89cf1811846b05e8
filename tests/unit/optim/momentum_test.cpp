// Lion and gradient descent with momentum over many steps against their formulas in double.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/device.hpp"
#include "optim/optimizer.hpp"

namespace tessera::kernels {
namespace {

using optim::make_optimizer, optim::Optimizer, optim::StepScalars;

constexpr std::int64_t kElements = 77;
constexpr double kDecay = 0.1, kFactor = 0.5, kMomentum = 0.75, kAverage = 0.9375;
constexpr std::array kBetas = {0.875, 0.96875};

template <typename T>
View view_of(std::vector<T>& v) {
  return View(reinterpret_cast<std::byte*>(v.data()), DTypeOf<T>::value,
              {static_cast<std::int64_t>(v.size())});
}

/// What the formula makes of a weight and its moment.
using Formula = void (*)(double g, double& w, double& m, double lr);

void lion(double g, double& w, double& m, double lr) {
  const double c = kBetas[0] * m + (1 - kBetas[0]) * g;
  w -= lr * ((c > 0) - (c < 0) + kDecay * w);
  m = kBetas[1] * m + (1 - kBetas[1]) * g;
}
/// torch.optim.SGD, dampening 0.
void sgd(double g, double& w, double& m, double lr) {
  m = kMomentum * m + g + kDecay * w;
  w -= lr * m;
}
void sgd_nesterov(double g, double& w, double& m, double lr) {
  g += kDecay * w;
  m = kMomentum * m + g;
  w -= lr * (g + kMomentum * m);
}

struct OneMoment {
  const char* name;
  deck::OptimizerName rule;
  bool nesterov;
  Formula formula;
  friend void PrintTo(const OneMoment& c, std::ostream* to) { *to << c.name; }
};

class OfOneMoment : public testing::TestWithParam<OneMoment> {
 protected:
  /// The average is by what follows the update.
  void step(std::vector<float>& gradient, double lr, float apply = 1) {
    StepScalars numbers{};
    numbers[static_cast<std::size_t>(StepScalar::lr)] = static_cast<float>(lr);
    optimizer.set_scalars(numbers, 1);
    std::vector<float> scalars(numbers.begin(), numbers.end()), verdict{apply, 1};
    const std::array state{view_of(moment), view_of(average)};
    device->run(optimizer.update({.gradient = view_of(gradient),
                                  .master = view_of(master),
                                  .parameter = view_of(parameter),
                                  .scalars = view_of(scalars),
                                  .verdict = view_of(verdict),
                                  .state = state},
                                 optimizer.terms_of("x", optim::ParameterKind::matrix)));
  }

  std::unique_ptr<Device> device = make_cpu_device({});
  Optimizer optimizer = make_optimizer({.name = GetParam().rule,
                                        .betas = kBetas,
                                        .momentum = kMomentum,
                                        .nesterov = GetParam().nesterov,
                                        .weight_decay = kDecay,
                                        .groups = {{.match = "x", .lr_factor = kFactor}},
                                        .ema = kAverage});
  std::vector<float> master = std::vector<float>(kElements), moment = master, average = master;
  std::vector<bf16> parameter = std::vector<bf16>(kElements);
};

// A step rounds what it adds, at most lr |m| / (1 - momentum), a few times and the weight twice.
// Gradients are of about 1, so that no direction of Lion's is within rounding of 0.
TEST_P(OfOneMoment, FollowsItsFormula) {
  constexpr int kSteps = 60;
  constexpr double kLr = 0.02;
  std::mt19937 random{7};
  std::normal_distribution<float> normal;
  for (auto& w : master) w = normal(random);
  average = master;
  std::vector<double> w(master.begin(), master.end()), m(kElements), a = w;
  for (int t = 1; t <= kSteps; ++t) {
    std::vector<float> gradient(kElements);
    for (auto& g : gradient) g = normal(random);
    for (std::size_t i = 0; i < w.size(); ++i) {
      GetParam().formula(static_cast<double>(gradient[i]), w[i], m[i], kFactor * kLr / t);
      a[i] = kAverage * a[i] + (1 - kAverage) * w[i];
    }
    step(gradient, kLr / t);
  }
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double size = std::max(1.0, std::abs(w[i]));
    EXPECT_NEAR(master[i], w[i], kSteps * 0x1p-24 * (2 * size + 12 * kLr * 4 / (1 - kMomentum)));
    EXPECT_NEAR(average[i], a[i], kSteps * 0x1p-24 * (4 * size + 12 * kLr * 4 / (1 - kMomentum)));
    EXPECT_NEAR(moment[i], m[i], kSteps * 0x1p-24 * 4 * 4 / (1 - kMomentum));
    EXPECT_EQ(parameter[i].bits, bf16(master[i]).bits);
  }
}

// Trap 39; and what has no gradient, no moment and no decay does not move.
TEST_P(OfOneMoment, SkipsAStepAndKeepsZeros) {
  std::vector<float> gradient(kElements, std::numeric_limits<float>::quiet_NaN());
  std::ranges::fill(moment, 0.25F), std::ranges::fill(average, 3.0F);
  const auto before = master;
  step(gradient, 1, 0);
  EXPECT_EQ(master, before);
  EXPECT_EQ(moment, std::vector<float>(kElements, 0.25F));
  EXPECT_EQ(average, std::vector<float>(kElements, 3.0F));
  std::ranges::fill(moment, 0.0F), std::ranges::fill(gradient, 0.0F);
  step(gradient, 1);
  EXPECT_EQ(master, before);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, OfOneMoment,
                         testing::Values(OneMoment{"Lion", deck::OptimizerName::lion, false, lion},
                                         OneMoment{"Sgd", deck::OptimizerName::sgd, false, sgd},
                                         OneMoment{"SgdNesterov", deck::OptimizerName::sgd, true,
                                                   sgd_nesterov}),
                         [](const auto& rule) { return rule.param.name; });

}  // namespace
}  // namespace tessera::kernels
