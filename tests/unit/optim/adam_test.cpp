// Updates over many steps against Adam and AdamW in double, written as in the papers.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/exact_sum.hpp"
#include "kernels/cpu/device.hpp"
#include "optim/optimizer.hpp"

namespace tessera::kernels {
namespace {

using optim::make_optimizer, optim::Optimizer, optim::StepScalars;

constexpr std::int64_t kElements = 77;
constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8, kDecay = 0.1, kClip = 1.5;

template <typename T>
View view(std::vector<T>& v) {
  return View(reinterpret_cast<std::byte*>(v.data()), DTypeOf<T>::value,
              {static_cast<std::int64_t>(v.size())});
}

/// PyTorch's torch.optim.Adam and AdamW after torch.nn.utils.clip_grad_norm_, in double.
struct Reference {
  std::vector<double> w, m, v;
  void step(const std::vector<float>& gradient, Decay kind, double lr, int t) {
    double norm = 0;
    for (double g : gradient) norm += g * g;
    const double clip = std::min(1.0, kClip / (std::sqrt(norm) + 1e-6));
    for (std::size_t i = 0; i < w.size(); ++i) {
      double g = clip * static_cast<double>(gradient[i]);
      if (kind == Decay::l2) g += kDecay * w[i];
      if (kind == Decay::decoupled) w[i] -= lr * kDecay * w[i];
      m[i] = kBeta1 * m[i] + (1 - kBeta1) * g;
      v[i] = kBeta2 * v[i] + (1 - kBeta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(kBeta1, t));
      const double v_hat = v[i] / (1 - std::pow(kBeta2, t));
      w[i] -= lr * m_hat / (std::sqrt(v_hat) + kEps);
    }
  }
};

class Trajectory : public testing::TestWithParam<Decay> {
 protected:
  Trajectory() {
    std::normal_distribution<float> normal;
    for (auto& x : master) x = normal(random);
    reference.w.assign(master.begin(), master.end());
    reference.m.resize(kElements);
    reference.v.resize(kElements);
  }

  void run(KernelCall call) {
    std::vector<std::uint8_t> scratch(static_cast<std::size_t>(device->scratch_bytes(call)) + 64);
    const auto address = reinterpret_cast<std::uintptr_t>(scratch.data());
    const View aligned(reinterpret_cast<std::byte*>((address + 63) / 64 * 64), DType::u8,
                       {device->scratch_bytes(call)});
    std::visit([&](auto& args) { args.scratch = aligned; }, call);
    device->run(call);
  }

  /// One step on the device, norm and verdict included; the gradient arrives scaled.
  void step(std::vector<float> gradient, double lr, int t, double loss_scale) {
    for (auto& g : gradient) g *= static_cast<float>(loss_scale);
    std::vector<std::int64_t> words(kExactSumWords);
    run(ExactSum{.x = view(gradient), .accumulator = view(words)});
    StepScalars numbers{};
    numbers[static_cast<std::size_t>(StepScalar::unscale)] = static_cast<float>(1 / loss_scale);
    numbers[static_cast<std::size_t>(StepScalar::lr)] = static_cast<float>(lr);
    optimizer.set_scalars(numbers, t);
    std::vector<float> scalars(numbers.begin(), numbers.end());
    run(Verdict{.squares = view(words),
                .scalars = view(scalars),
                .verdict = view(verdict),
                .clip_norm = optimizer.clip_norm});
    const std::array state{view(m), view(v)};
    device->run(optimizer.update({.gradient = view(gradient),
                                  .master = view(master),
                                  .parameter = view(parameter),
                                  .scalars = view(scalars),
                                  .verdict = view(verdict),
                                  .state = state},
                                 optimizer.terms_of("matrix", optim::ParameterKind::matrix)));
  }

  std::mt19937 random{4};
  std::unique_ptr<Device> device = make_cpu_device({});
  Optimizer optimizer =
      make_optimizer({.name = GetParam() == Decay::decoupled ? deck::OptimizerName::adamw
                                                             : deck::OptimizerName::adam,
                      .betas = {{kBeta1, kBeta2}},
                      .eps = kEps,
                      .weight_decay = kDecay,
                      .clip_norm = kClip});
  std::vector<float> master = std::vector<float>(kElements), m = master, v = master;
  std::vector<bf16> parameter = std::vector<bf16>(kElements);
  std::vector<float> verdict = std::vector<float>(static_cast<std::size_t>(VerdictField::count));
  Reference reference;
};

// Gradients of about 1 to 10, so that some steps are clipped and some are not. A step moves a
// weight by at most about lr / (1 - beta1) and rounds what it moves by a dozen times, and the
// weight itself, of size up to w, twice: the errors of 60 steps add up.
TEST_P(Trajectory, FollowsTheReference) {
  std::normal_distribution<float> normal;
  constexpr int kSteps = 60;
  constexpr double kLr = 0.02, kScale = 256;
  for (int t = 1; t <= kSteps; ++t) {
    std::vector<float> gradient(kElements);
    const float size = t % 3 == 0 ? 0.05F : 1.0F;
    for (auto& g : gradient) g = size * normal(random);
    step(gradient, kLr / t, t, kScale);
    reference.step(gradient, GetParam(), kLr / t, t);
    ASSERT_EQ(verdict[static_cast<std::size_t>(VerdictField::apply)], 1);
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(kElements); ++i) {
    const double w = std::max(1.0, std::abs(reference.w[i]));
    EXPECT_NEAR(master[i], reference.w[i], kSteps * 0x1p-24 * (2 * w + 12 * kLr / (1 - kBeta1)));
    EXPECT_EQ(parameter[i].bits, bf16(master[i]).bits);
  }
}

// Traps 39 and 40: a gradient that is not finite changes nothing at all, and the next step is as if
// it had not been.
TEST_P(Trajectory, SkipsWhatIsNotFinite) {
  std::vector<float> good(kElements, 0.25F);
  step(good, 1e-2, 1, 1);
  const auto master_before = master, m_before = m, v_before = v;
  for (float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                    std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> gradient = good;
    gradient[kElements / 2] = bad;
    step(gradient, 1e-2, 2, 1);
    EXPECT_EQ(verdict[static_cast<std::size_t>(VerdictField::apply)], 0);
    EXPECT_EQ(master, master_before);
    EXPECT_EQ(m, m_before);
    EXPECT_EQ(v, v_before);
  }
}

INSTANTIATE_TEST_SUITE_P(Adam, Trajectory, testing::Values(Decay::decoupled, Decay::l2),
                         [](const auto& kind) {
                           return kind.param == Decay::l2 ? "Adam" : "AdamW";
                         });

}  // namespace
}  // namespace tessera::kernels
