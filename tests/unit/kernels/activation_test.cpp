#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double apply(ActivationKind kind, double x) {
  const double root = std::sqrt(2 / std::acos(-1.0));
  if (kind == ActivationKind::gelu || kind == ActivationKind::geglu)
    return x * sigmoid(2 * root * (x + 0.044715 * x * x * x));
  if (kind == ActivationKind::gelu_erf) return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
  if (kind == ActivationKind::tanh) return std::tanh(x);
  return kind == ActivationKind::relu ? std::max(x, 0.0) : x * sigmoid(x);
}
double slope(ActivationKind kind, double x) {
  if (kind == ActivationKind::relu) return x > 0 ? 1 : 0;
  const double h = 1e-5;  // central difference: error about h^2 / 6 + 1e-16 |x| / h < 1e-9
  return (apply(kind, x + h) - apply(kind, x - h)) / (2 * h);
}

// The argument of the sigmoid, or of e^(-x^2 / 2), errs by a few u of itself, which e^x makes
// relative: 8 u (1 + |arg|).
double relative_error(ActivationKind kind, double x) {
  const double argument = kind == ActivationKind::gelu || kind == ActivationKind::geglu
                              ? 1.6 * std::abs(x) + 0.072 * std::pow(std::abs(x), 3)
                          : kind == ActivationKind::gelu_erf ? x * x / 2
                                                             : std::abs(x);
  return 8 * 0x1p-24 * (1 + std::min(argument, 104.0));
}

/// x over the range of activations, denormals and the far tails included.
Tensor inputs(DType type, std::int64_t rows, std::int64_t columns) {
  Tensor x = Tensor::random(type, {2, rows / 2, columns}, 1, 4, 3);
  x.set(0, 0), x.set(1, 60), x.set(2, -60), x.set(3, 1e-30), x.set(4, -1e4);
  return x;
}

TEST(Activate, AgreesWithDouble) {
  for_devices_and_types([](Device& device, DType type) {
    for (ActivationKind kind : {ActivationKind::gelu, ActivationKind::gelu_erf,
                                ActivationKind::relu, ActivationKind::tanh}) {
      for (std::int64_t columns : {3, 17, 101}) {
        const Tensor x = inputs(type, 10, columns);
        Tensor y(type, {2, 5, columns}, 1), d_x(type, {2, 5, columns}, 2);
        const auto d_y = Tensor::random(type, {2, 5, columns}, 2);
        run(device, Activate{.x = x.view(), .y = y.view(), .kind = kind});
        run(device,
            ActivateBackward{.x = x.view(), .d_y = d_y.view(), .d_x = d_x.view(), .kind = kind});
        Numbers want, want_d;
        for (std::int64_t i = 0; i < x.size(); ++i) {
          want.push_back(apply(kind, x[i])), want_d.push_back(d_y[i] * slope(kind, x[i]));
        }
        expect_within(
            y, want,
            [&](std::int64_t i) {  // below 2^-126 / 60, e^x has lost bits to underflow
              const double w = want[static_cast<std::size_t>(i)];
              return relative_error(kind, x[i]) * std::abs(w) + 0x1p-120 + write_error(type, w);
            },
            "y");
        expect_within(
            d_x, want_d,
            [&](std::int64_t i) {
              const double w = want_d[static_cast<std::size_t>(i)];
              return 2 * (relative_error(kind, std::min(std::abs(x[i]), 16.0)) + 1e-9) *
                         std::abs(d_y[i]) +
                     write_error(type, w);
            },
            "d_x");
      }
    }
  });
}

void expect_gated(Device& device, DType type, ActivationKind kind) {
  for (std::int64_t columns : {1, 17, 101}) {
    const auto x = Tensor::random(type, {2, 5, 2 * columns}, 1, 3, 3);
    const auto d_y = Tensor::random(type, {2, 5, columns}, 2);
    Tensor y(type, {2, 5, columns}, 1);
    const Tensor d_x = x.copy();  // in place
    run(device, Activate{.x = x.view(), .y = y.view(), .kind = kind});
    run(device,
        ActivateBackward{.x = d_x.view(), .d_y = d_y.view(), .d_x = d_x.view(), .kind = kind});
    Numbers want, bound, want_d(static_cast<std::size_t>(x.size())), bound_d = want_d;
    for (std::int64_t i = 0; i < y.size(); ++i) {
      const std::int64_t g = i / columns * 2 * columns + i % columns, u = g + columns;
      const double e = relative_error(kind, x[g]);
      want.push_back(apply(kind, x[g]) * x[u]);
      bound.push_back(2 * e * std::abs(want.back()) + write_error(type, want.back()));
      const double d_gate = d_y[i] * x[u] * slope(kind, x[g]), d_up = d_y[i] * apply(kind, x[g]);
      want_d[static_cast<std::size_t>(g)] = d_gate, want_d[static_cast<std::size_t>(u)] = d_up;
      bound_d[static_cast<std::size_t>(g)] =
          2 * (e * (1 + std::abs(x[g])) + 1e-9) * std::abs(d_y[i] * x[u]) +
          write_error(type, d_gate);
      bound_d[static_cast<std::size_t>(u)] = 2 * e * std::abs(d_up) + write_error(type, d_up);
    }
    expect_within(
        y, want, [&](std::int64_t i) { return bound[static_cast<std::size_t>(i)]; }, "y");
    expect_within(
        d_x, want_d, [&](std::int64_t i) { return bound_d[static_cast<std::size_t>(i)]; }, "d_x");
  }
}

TEST(Activate, GatedOnesAgreeWithDouble) {
  for_devices_and_types([](Device& device, DType type) {
    for (const ActivationKind kind : {ActivationKind::swiglu, ActivationKind::geglu})
      expect_gated(device, type, kind);
  });
}

}  // namespace
}  // namespace tessera::kernels::test
