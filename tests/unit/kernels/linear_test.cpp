#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

struct Shape {
  std::int64_t m, n, k, gap;
};
const std::vector<Shape> kShapes = {{1, 1, 1, 0},     {1, 7, 5, 3},     {17, 33, 13, 0},
                                    {65, 31, 129, 5}, {3, 1030, 18, 2}, {70, 66, 48, 0}};

/// sum over k of a(m, k) b(k, n), and of absolute values.
struct Sum {
  double value = 0, magnitude = 0, bias = 0;
  void add(double x) { value += x, magnitude += std::abs(x); }
  void add_bias(double x) { add(x), bias = x; }
};

/// f32 accumulation of `terms` exact products in any order errs by at most terms u sum |a b|
/// (Higham 2002, section 3.1; 1.01 covers the second order); then one rounding when written.
/// cuBLASLt may round a product to the result's type before it adds a bias, as it does on an H100
/// where rows do not begin on 16 bytes.
double bound(const Sum& s, std::int64_t terms, DType out) {
  const double accumulated = 1.01 * static_cast<double>(terms) * 0x1p-24 * s.magnitude;
  const double written = write_error(out, std::abs(s.value) + accumulated);
  if (gpu() == Gpu::real && s.bias != 0) {
    const double product = write_error(out, std::abs(s.value - s.bias) + accumulated);
    return accumulated + product + write_error(out, std::abs(s.value) + accumulated + product);
  }
  return accumulated + written;
}

void expect_sums(const Tensor& got, const std::vector<Sum>& want, std::int64_t terms,
                 const char* what) {
  Numbers values;
  for (const Sum& s : want) values.push_back(s.value);
  expect_within(
      got, values,
      [&](std::int64_t i) {
        return bound(want[static_cast<std::size_t>(i)], terms, got.view().type);
      },
      what);
}

void expect_double_sums(Device& device, DType type) {
  for (const Shape& s : kShapes) {
    for (bool with_bias : {false, true}) {
      const auto x = Tensor::random(type, {1, s.m, s.k}, 1, 1, s.gap);
      const auto w = Tensor::random(type, {s.n, s.k}, 2, 1, s.gap);
      const auto b = Tensor::random(type, {s.n}, 3);
      std::vector<Sum> want(static_cast<std::size_t>(s.m * s.n));
      for (std::int64_t i = 0; i < s.m * s.n; ++i) {
        Sum& sum = want[static_cast<std::size_t>(i)];
        const std::int64_t row = i / s.n, column = i % s.n;
        for (std::int64_t k = 0; k < s.k; ++k) sum.add(x[row * s.k + k] * w[column * s.k + k]);
        if (with_bias) sum.add_bias(b[column]);
      }
      for (DType to : {DType::f32, type}) {
        Tensor y(to, {1, s.m, s.n}, s.gap);
        run(device, Linear{.x = x.view(),
                           .weight = w.view(),
                           .bias = with_bias ? b.view() : View(),
                           .y = y.view()});
        expect_sums(y, want, s.k + 1, "y");
      }
    }
  }
}

TEST(Linear, AgreesWithDoubleSums) { for_devices_of_products(expect_double_sums); }

/// As for_cpu_devices_and_types(), of devices with products of few rows of their own.
void for_devices_of_few_rows(const std::function<void(Device&, DType)>& f) {
  for (const Isa isa : isas_of_products()) {
    for (const DType type : kTypes) {
      SCOPED_TRACE(fmt::format("{} {}", enum_word(isa), to_string(type)));
      f(*make_cpu_device({.threads = 2, .isa = isa, .few_rows = true}), type);
    }
  }
}

TEST(Linear, OfFewRowsAgreesWithDoubleSums) { for_devices_of_few_rows(expect_double_sums); }

TEST(Linear, InputGradientAgreesWithDoubleSums) {
  for_devices_of_products([](Device& device, DType type) {
    for (const Shape& s : kShapes) {
      const auto d_y = Tensor::random(type, {s.m, s.n}, 1, 1, s.gap);
      const auto w = Tensor::random(type, {s.n, s.k}, 2, 1, s.gap);
      std::vector<Sum> want(static_cast<std::size_t>(s.m * s.k));
      for (std::int64_t i = 0; i < s.m * s.k; ++i) {
        const std::int64_t row = i / s.k, column = i % s.k;
        for (std::int64_t n = 0; n < s.n; ++n) {
          want[static_cast<std::size_t>(i)].add(d_y[row * s.n + n] * w[n * s.k + column]);
        }
      }
      for (DType to : {DType::f32, type}) {
        Tensor d_x(to, {s.m, s.k}, s.gap);
        run(device, LinearBackwardInput{.d_y = d_y.view(), .weight = w.view(), .d_x = d_x.view()});
        expect_sums(d_x, want, s.n + 1, "d_x");
      }
    }
  });
}

/// Rows on 16 bytes, whose gelu cuBLASLt applies; and others: of preactivations, of operands.
const std::vector<Shape> kActivated = {{1, 8, 8, 0},  {17, 40, 24, 8}, {9, 33, 40, 0},
                                       {5, 48, 7, 3}, {1, 8, 5, 0},    {17, 40, 13, 8}};

// The CPU's bits are those of the operations apart: gelu of what the product has written. Also
// where results are larger than caches, or depths are cut.
TEST(Linear, BringsTheBitsOfGeluAlong) {
  std::vector<Shape> shapes = kActivated;
  shapes.insert(shapes.end(), {{130, 8200, 24, 0}, {130, 24, 8200, 0}});
  for_cpu_devices_and_types([&](Device& device, DType type) {
    for (const Shape& s : shapes) {
      const auto x = Tensor::random(type, {s.m, s.k}, 1), w = Tensor::random(type, {s.n, s.k}, 2),
                 b = Tensor::random(type, {s.n}, 3), d = Tensor::random(type, {s.m, s.n}, 4);
      const Tensor before(type, {s.m, s.n}, s.gap), y(type, {s.m, s.n}),
          want_before(type, {s.m, s.n}, s.gap), want(type, {s.m, s.n}), d_x(type, {s.m, s.k}),
          want_d(type, {s.m, s.k});
      const Linear together{.x = x.view(),
                            .weight = w.view(),
                            .bias = b.view(),
                            .y = y.view(),
                            .preactivation = before.view()};
      run(device, together);
      run(device,
          Linear{.x = x.view(), .weight = w.view(), .bias = b.view(), .y = want_before.view()});
      run(device, Activate{.x = want_before.view(), .y = want.view()});
      EXPECT_TRUE(before.same_bits(want_before) && before.gaps_intact());
      EXPECT_TRUE(y.same_bits(want));
      run(device,
          LinearBackwardInput{
              .d_y = d.view(), .weight = w.view(), .d_x = d_x.view(), .preactivation = x.view()});
      run(device, LinearBackwardInput{.d_y = d.view(), .weight = w.view(), .d_x = want_d.view()});
      run(device, ActivateBackward{.x = x.view(), .d_y = want_d.view(), .d_x = want_d.view()});
      EXPECT_TRUE(d_x.same_bits(want_d));
    }
  });
}

/// Of cuBLASLt's tanh, which its documentation does not bound: that of the instruction tanh.approx
/// (PTX ISA, 2^-10.987 relative) on a GPU, nothing where it is emulated or not asked.
double tanh_error(DType type) { return gpu() == Gpu::real && type != DType::f32 ? 0x1p-10 : 0; }

double gelu_of(double x) {
  const double root = std::sqrt(2 / std::acos(-1.0));
  return 0.5 * x * (1 + std::tanh(root * (x + 0.044715 * x * x * x)));
}
double gelu_slope_of(double x) {
  const double root = std::sqrt(2 / std::acos(-1.0)),
               t = std::tanh(root * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}

// Gelu's slope is at most 1.13, its own at most 2 root(2 / pi) < 1.6; both are computed to some 60
// u of 1 + |x| where |x| is up to 8 (kernels/common/math).
TEST(Linear, WithGeluAgreesWithDouble) {
  for_devices_and_types([](Device& device, DType type) {
    for (const Shape& s : kActivated) {
      const double scale = 1 / std::sqrt(static_cast<double>(s.k));
      const auto x = Tensor::random(type, {s.m, s.k}, 1),
                 w = Tensor::random(type, {s.n, s.k}, 2, scale), b = Tensor::random(type, {s.n}, 3);
      Tensor before(type, {s.m, s.n}, s.gap), y(type, {s.m, s.n});
      run(device, Linear{.x = x.view(),
                         .weight = w.view(),
                         .bias = b.view(),
                         .y = y.view(),
                         .preactivation = before.view()});
      std::vector<Sum> sums(static_cast<std::size_t>(s.m * s.n));
      Numbers want;
      for (std::int64_t i = 0; i < s.m * s.n; ++i) {
        Sum& sum = sums[static_cast<std::size_t>(i)];
        for (std::int64_t k = 0; k < s.k; ++k) sum.add(x[i / s.n * s.k + k] * w[i % s.n * s.k + k]);
        sum.add_bias(b[i % s.n]);
        want.push_back(gelu_of(sum.value));
      }
      expect_sums(before, sums, s.k + 1, "preactivation");
      expect_within(
          y, want,
          [&](std::int64_t i) {
            const Sum& sum = sums[static_cast<std::size_t>(i)];
            return 1.13 * bound(sum, s.k + 1, type) +
                   (60 * 0x1p-24 + tanh_error(type)) * (1 + std::abs(sum.value)) +
                   write_error(type, want[static_cast<std::size_t>(i)]);
          },
          "gelu");
    }
  });
}

TEST(Linear, InputGradientThroughGeluAgreesWithDouble) {
  for_devices_and_types([](Device& device, DType type) {
    for (const Shape& s : kActivated) {  // here n is the width of the preactivation
      const auto d_y = Tensor::random(type, {s.m, s.k}, 1), w = Tensor::random(type, {s.k, s.n}, 2),
                 before = Tensor::random(type, {s.m, s.n}, 3, 2, s.gap);
      Tensor d_x(type, {s.m, s.n});
      run(device, LinearBackwardInput{.d_y = d_y.view(),
                                      .weight = w.view(),
                                      .d_x = d_x.view(),
                                      .preactivation = before.view()});
      std::vector<Sum> sums(static_cast<std::size_t>(s.m * s.n));
      Numbers want;
      for (std::int64_t i = 0; i < s.m * s.n; ++i) {
        Sum& sum = sums[static_cast<std::size_t>(i)];
        for (std::int64_t k = 0; k < s.k; ++k)
          sum.add(d_y[i / s.n * s.k + k] * w[k * s.n + i % s.n]);
        want.push_back(sum.value * gelu_slope_of(before[i]));
      }
      expect_within(
          d_x, want,
          [&](std::int64_t i) {
            const Sum& sum = sums[static_cast<std::size_t>(i)];
            const double product = bound(sum, s.k, type);
            return 1.13 * product +
                   (60 * 0x1p-24 + 8 * tanh_error(type)) * (std::abs(sum.value) + product) +
                   write_error(type, want[static_cast<std::size_t>(i)]);
          },
          "d_x");
    }
  });
}

TEST(Linear, WeightGradientAgreesWithDoubleSums) {
  for_devices_of_products([](Device& device, DType type) {
    for (const Shape& s : kShapes) {
      for (DType to : {DType::f32, type}) {
        for (Write write : {Write::overwrite, Write::add}) {
          const auto d_y = Tensor::random(type, {s.m, s.n}, 1, 1, s.gap);
          const auto x = Tensor::random(type, {s.m, s.k}, 2, 1, s.gap);
          const auto d_w0 = Tensor::random(to, {s.n, s.k}, 3, 1, s.gap);
          const auto d_b0 = Tensor::random(to, {s.n}, 4);
          const Tensor d_w = d_w0.copy(), d_b = d_b0.copy();
          run(device, LinearBackwardWeight{.d_y = d_y.view(),
                                           .x = x.view(),
                                           .d_weight = d_w.view(),
                                           .d_bias = d_b.view(),
                                           .write = write});
          std::vector<Sum> weight(static_cast<std::size_t>(s.n * s.k));
          std::vector<Sum> bias(static_cast<std::size_t>(s.n));
          for (std::int64_t i = 0; i < s.n * s.k; ++i) {
            Sum& sum = weight[static_cast<std::size_t>(i)];
            if (write == Write::add) sum.add(d_w0[i]);
            for (std::int64_t m = 0; m < s.m; ++m) {
              sum.add(d_y[m * s.n + i / s.k] * x[m * s.k + i % s.k]);
            }
          }
          for (std::int64_t i = 0; i < s.n; ++i) {
            Sum& sum = bias[static_cast<std::size_t>(i)];
            if (write == Write::add) sum.add(d_b0[i]);
            for (std::int64_t m = 0; m < s.m; ++m) sum.add(d_y[m * s.n + i]);
          }
          expect_sums(d_w, weight, s.m + 1, "d_weight");
          expect_sums(d_b, bias, s.m + 1, "d_bias");
        }
      }
    }
  });
}

// So that a sequence's next token does not depend on how many others there are beside it.
TEST(Linear, OfFewRowsIsOfEachRowByItself) {
  for_devices_of_few_rows([](Device& device, DType type) {
    for (const std::int64_t k : {96, 100}) {
      const std::int64_t most = 32, n = 37;
      const auto x = Tensor::random(type, {most, k}, 1), w = Tensor::random(type, {n, k}, 2),
                 b = Tensor::random(type, {n}, 3);
      const auto product = [&](std::int64_t first, std::int64_t rows) {
        Tensor y(type, {rows, n});
        run(device, Linear{.x = x.view().row_range(first, rows),
                           .weight = w.view(),
                           .bias = b.view(),
                           .y = y.view()});
        return y.numbers();
      };
      Numbers each;
      for (std::int64_t row = 0; row < most; ++row)
        std::ranges::copy(product(row, 1), std::back_inserter(each));
      for (const std::int64_t rows : {2, 3, 7, 16, 32}) {
        const Numbers together = product(most - rows, rows);
        EXPECT_TRUE(std::ranges::equal(together, std::span(each).last(together.size()))) << rows;
      }
    }
  });
}

TEST(Linear, RefusesShapesThatDoNotFit) {
  const auto device = make_cpu_device({.threads = 1});
  const Tensor x(DType::f32, {2, 3}), w(DType::f32, {4, 5}), y(DType::f32, {2, 4});
  Linear call{.x = x.view(), .weight = w.view(), .y = y.view()};
  EXPECT_THROW(device->scratch_bytes(call), InternalError);
}

TEST(Linear, RefusesResultsNarrowerThanTheOperands) {
  const auto device = make_cpu_device({.threads = 1});
  const Tensor x(DType::f32, {2, 3}), w(DType::f32, {4, 3}), y(DType::bf16, {2, 4});
  EXPECT_THROW(device->run(Linear{.x = x.view(), .weight = w.view(), .y = y.view()}),
               InternalError);
  EXPECT_THROW(device->run(LinearBackwardInput{.d_y = x.view(),
                                               .weight = w.view().matrix().row_range(0, 3),
                                               .d_x = y.view().col_range(0, 3)}),
               InternalError);
}

TEST(Linear, RefusesPreactivationsThatDoNotFit) {
  const auto device = make_cpu_device({.threads = 1});
  const Tensor x(DType::bf16, {2, 3}), w(DType::bf16, {4, 3}), y(DType::bf16, {2, 4}),
      wide(DType::f32, {2, 4});
  const auto gelu = [&](const View& result, const View& before) {
    device->run(Linear{.x = x.view(), .weight = w.view(), .y = result, .preactivation = before});
  };
  EXPECT_THROW(gelu(y.view(), wide.view()), InternalError);
  EXPECT_THROW(gelu(wide.view(), wide.view()), InternalError);
  EXPECT_THROW(gelu(y.view(), x.view()), InternalError);
  EXPECT_THROW(
      device->run(LinearBackwardInput{
          .d_y = y.view(), .weight = w.view(), .d_x = x.view(), .preactivation = y.view()}),
      InternalError);
}

TEST(Linear, RefusesTooLittleScratch) {
  const auto device = make_cpu_device({.threads = 1});
  const auto x = Tensor::random(DType::f16, {2, 3}, 1), w = Tensor::random(DType::f16, {4, 3}, 2);
  const Tensor y(DType::f16, {2, 4});
  EXPECT_THROW(device->run(Linear{.x = x.view(), .weight = w.view(), .y = y.view()}),
               InternalError);
}

}  // namespace
}  // namespace tessera::kernels::test
