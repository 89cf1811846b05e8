// fp8 numbers against tables of the formats' codes, and products of them against double.
#include "kernels/common/fp8.hpp"

#include <algorithm>

#include "kernels/cpu/hot/hot.hpp"
#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

/// The finite number of a code without sign, as the format's paper has it (Micikevicius et al.
/// 2022, table 1); nothing for infinities and not-a-number.
template <typename Format>
std::optional<double> number_of(int code) {
  constexpr bool kE4m3 = Format::kMantissa == 3;
  const int bias = kE4m3 ? 7 : 15, ones = (1 << Format::kMantissa) - 1;
  const int exponent = code >> Format::kMantissa, mantissa = code & ones;
  if (kE4m3 ? code == 0x7f : exponent == 31) return std::nullopt;
  const double fraction = static_cast<double>(mantissa) / (ones + 1);
  return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
}

template <typename Format>
std::vector<double> numbers_of() {
  std::vector<double> all;
  for (int code = 0; code < 128; ++code) {
    if (const auto number = number_of<Format>(code)) all.push_back(*number);
  }
  return all;  // ascending, and a number's place is its code
}

/// The code of the number nearest to |x|, the even one of two.
template <typename Format>
int nearest(double x) {
  static const auto numbers = numbers_of<Format>();
  const double magnitude = std::abs(x);
  const auto above = std::ranges::lower_bound(numbers, magnitude);
  if (above == numbers.end()) return static_cast<int>(numbers.size()) - 1;
  const auto code = static_cast<int>(above - numbers.begin());
  if (code == 0) return 0;
  const double to_upper = *above - magnitude, to_lower = magnitude - *(above - 1);
  if (to_upper == to_lower) return code % 2 == 0 ? code : code - 1;
  return to_upper < to_lower ? code : code - 1;
}
template <typename Format>
double rounded(double x) {
  return std::copysign(*number_of<Format>(nearest<Format>(x)), x);
}

/// All numbers of the format, what lies between them and right beside that, and what lies beyond.
template <typename Format>
std::vector<float> examples() {
  std::vector<float> all = {0.0F, 0x1p-149F, 1e-30F, 3e38F, std::numeric_limits<float>::infinity()};
  const auto numbers = numbers_of<Format>();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double next = i + 1 < numbers.size() ? numbers[i + 1] : 1.2 * numbers[i];
    for (const double x : {numbers[i], (numbers[i] + next) / 2}) {
      const auto f = static_cast<float>(x);
      for (const float y : {f, std::nextafter(f, 0.0F), std::nextafter(f, 1e30F)}) all.push_back(y);
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isnan(x)) all.push_back(x);
  }
  for (std::size_t i = all.size(); i-- > 0;) all.push_back(-all[i]);
  return all;
}

template <typename F>
void for_formats(F&& f) {
  f.template operator()<E4m3>(DType::e4m3);
  f.template operator()<E5m2>(DType::e5m2);
}

TEST(Fp8, HasTheNumbersOfThePaper) {
  const auto e4m3 = numbers_of<E4m3>(), e5m2 = numbers_of<E5m2>();
  EXPECT_EQ(e4m3.size(), 127U);
  EXPECT_EQ(e5m2.size(), 124U);
  EXPECT_EQ(e4m3.back(), E4m3::kLargest);
  EXPECT_EQ(e5m2.back(), E5m2::kLargest);
  EXPECT_EQ(e4m3[1], 0x1p-9);
  EXPECT_EQ(e5m2[1], 0x1p-16);
}

TEST(Fp8, RoundsToNearestEvenAndSaturates) {
  for_formats([]<typename Format>(DType type) {
    SCOPED_TRACE(to_string(type));
    for (const float x : examples<Format>()) {
      const float got = rounded_to_fp8<Format>(x);
      const int code = nearest<Format>(x);
      ASSERT_EQ(got, rounded<Format>(x)) << x;
      ASSERT_EQ(fp8_code<Format>(got), code == 0 || x > 0 ? code : code + 128) << x;
    }
    const float nan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(rounded_to_fp8<Format>(nan)));
    EXPECT_FALSE(number_of<Format>(fp8_code<Format>(nan)));
  });
}

TEST(Fp8, RoundsAlikeInEveryInstructionSet) {
  for_formats([]<typename Format>(DType format) {
    const auto all = examples<Format>();
    const auto n = static_cast<std::int64_t>(all.size());
    Tensor x(DType::f32, {1, n});
    for (std::int64_t i = 0; i < n; ++i) x.set(i, all[static_cast<std::size_t>(i)]);
    for (const Isa isa : isas()) {
      for (const DType type : {DType::f32, DType::bf16}) {
        const Tensor out(type, {1, n});
        hot_kernels(isa).round_to_fp8(x.view(), 1.0F, format, out.view(), {0, 1});
        for (std::int64_t i = 0; i < n; ++i)
          ASSERT_EQ(out[i], rounded<Format>(x[i])) << x[i] << " in " << enum_word(isa);
      }
    }
  });
}

TEST(Fp8, FindsTheLargestMagnitude) {
  for (const DType type : {DType::f32, DType::bf16}) {
    auto x = Tensor::random(type, {7, 37}, 1, 1, 3);
    const auto largest = [&](Isa isa) {
      const std::uint32_t first = hot_kernels(isa).largest_magnitude(x.view(), {0, 3});
      return std::max(first, hot_kernels(isa).largest_magnitude(x.view(), {3, 7}));
    };
    for (const Isa isa : isas()) {
      x.set(200, -50.0);
      EXPECT_EQ(std::bit_cast<float>(largest(isa)), 50.0F);
      x.set(200, -std::numeric_limits<double>::infinity());
      EXPECT_EQ(largest(isa), 0x7f800000U);
      x.set(36, std::numeric_limits<double>::quiet_NaN());
      EXPECT_GT(largest(isa), 0x7f800000U);
      x.set(36, 0);
    }
  }
}

TEST(Fp8, ScalesTheLargestMagnitudeToTheLargestNumber) {
  for_formats([]<typename Format>(DType) {
    const auto scale = [](float largest) {
      return fp8_scale<Format>(std::bit_cast<std::uint32_t>(largest));
    };
    EXPECT_EQ(scale(0).to, 1);
    EXPECT_EQ(scale(0).back, 1);
    for (const float x : {1.0F, 448.0F, 3.14159F, 1e-6F, 1e30F, 3.4e38F}) {
      const Fp8Scale s = scale(x);
      EXPECT_EQ(rounded_to_fp8<Format>(x * s.to), Format::kLargest) << x;
      EXPECT_NEAR(static_cast<double>(s.to) * static_cast<double>(s.back), 1, 0x1p-24);
    }
    for (const float x : {0x1p-149F, 1e-44F, 1e-38F}) {  // as large as a normal inverse allows
      const Fp8Scale s = scale(x);
      EXPECT_TRUE(std::isnormal(s.to) && std::isnormal(s.back)) << x;
      EXPECT_EQ(static_cast<double>(s.to) * static_cast<double>(s.back), 1) << x;
    }
    EXPECT_TRUE(std::isnan(scale(std::numeric_limits<float>::infinity()).to));
    EXPECT_TRUE(std::isnan(scale(std::numeric_limits<float>::quiet_NaN()).back));
  });
}

/// A tensor as fp8 numbers, and what takes them back.
struct Quantized {
  Numbers numbers;
  double back = 1;
};
template <typename Format>
Quantized quantized(const Tensor& x) {
  float most = 0;
  for (std::int64_t i = 0; i < x.size(); ++i)
    most = std::max(most, static_cast<float>(std::abs(x[i])));
  const Fp8Scale scale = fp8_scale<Format>(std::bit_cast<std::uint32_t>(most));
  Quantized q{.numbers = {}, .back = scale.back};
  for (std::int64_t i = 0; i < x.size(); ++i)
    q.numbers.push_back(rounded<Format>(static_cast<float>(x[i]) * scale.to));
  return q;
}

struct Sum {
  double value = 0, magnitude = 0;
  void add(double x) { value += x, magnitude += std::abs(x); }
};

/// Roundoff of a sum of products of fp8 numbers, which themselves are exact. Hopper's tensor cores
/// keep some 14 bits between the steps at which they add to f32 (DeepSeek-AI 2024, section 3.3.2).
double sum_roundoff() { return gpu() == Gpu::real ? 0x1p-13 : 0x1p-24; }

/// Of `terms` products (Higham 2002, section 3.1), scaled by two factors, each rounded; then with
/// what is added, another rounding of all that.
double bound(const Sum& products, double added, std::int64_t terms, DType out) {
  const double accumulated =
      1.01 * (static_cast<double>(terms) * sum_roundoff() + 4 * 0x1p-24) * products.magnitude;
  const double all = std::abs(products.value) + std::abs(added) + accumulated;
  return accumulated + 0x1p-23 * all + write_error(out, all);
}

struct Shape {
  std::int64_t m, n, k, gap;
};
const std::vector<Shape> kShapes = {{16, 16, 16, 0}, {80, 48, 144, 0}, {32, 144, 80, 16}};

/// f(device, type) on all devices for the types that fp8 products are of. Skips the test on a real
/// GPU that is too old.
void for_products(const std::function<void(Device&, DType)>& f) {
  if (gpu() == Gpu::real) {
    if (const auto why = tessera::test::why_no_fp8()) GTEST_SKIP() << *why;
  }
  for_devices([&](Device& device) {
    for (const DType type : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(to_string(type));
      f(device, type);
    }
  });
}

/// Numbers over some twelve powers of two, so that many become denormals of a format.
Tensor spread(DType type, std::vector<std::int64_t> shape, unsigned seed, std::int64_t gap = 0) {
  Tensor t = Tensor::random(type, std::move(shape), seed, 1, gap);
  for (std::int64_t i = 0; i < t.size(); ++i)
    t.set(i, t[i] * std::exp2(-static_cast<double>(i % 13)));
  return t;
}

TEST(Fp8Products, AgreeWithDouble) {
  for_products([](Device& device, DType type) {
    for (const Shape& s : kShapes) {
      const auto x = spread(type, {2, s.m / 2, s.k}, 1, s.gap),
                 w = spread(type, {s.n, s.k}, 2, s.gap);
      const auto b = Tensor::random(type, {s.n}, 3, 0.1);
      const Quantized qx = quantized<E4m3>(x), qw = quantized<E4m3>(w);
      for (const bool with_bias : {false, true}) {
        for (const DType to : {DType::f32, type}) {
          Tensor y(to, {2, s.m / 2, s.n}, s.gap);
          run(device, Linear{.x = x.view(),
                             .weight = w.view(),
                             .bias = with_bias ? b.view() : View(),
                             .y = y.view(),
                             .operands = Operands::fp8});
          std::vector<Sum> sums(static_cast<std::size_t>(s.m * s.n));
          Numbers want;
          for (std::int64_t i = 0; i < s.m * s.n; ++i) {
            Sum& sum = sums[static_cast<std::size_t>(i)];
            for (std::int64_t k = 0; k < s.k; ++k) {
              sum.add(qx.numbers[static_cast<std::size_t>(i / s.n * s.k + k)] *
                      qw.numbers[static_cast<std::size_t>(i % s.n * s.k + k)] * qx.back * qw.back);
            }
            want.push_back(sum.value + (with_bias ? b[i % s.n] : 0));
          }
          expect_within(
              y, want,
              [&](std::int64_t i) {
                return bound(sums[static_cast<std::size_t>(i)], b[i % s.n], s.k, to);
              },
              "y");
        }
      }
    }
  });
}

TEST(Fp8Products, InputGradientsAgreeWithDouble) {
  for_products([](Device& device, DType type) {
    for (const Shape& s : kShapes) {
      const auto d_y = spread(type, {s.m, s.n}, 1, s.gap), w = spread(type, {s.n, s.k}, 2, s.gap);
      const Quantized qd = quantized<E5m2>(d_y), qw = quantized<E4m3>(w);
      for (const DType to : {DType::f32, type}) {
        Tensor d_x(to, {s.m, s.k}, s.gap);
        run(device, LinearBackwardInput{.d_y = d_y.view(),
                                        .weight = w.view(),
                                        .d_x = d_x.view(),
                                        .operands = Operands::fp8});
        std::vector<Sum> sums(static_cast<std::size_t>(s.m * s.k));
        Numbers want;
        for (std::int64_t i = 0; i < s.m * s.k; ++i) {
          Sum& sum = sums[static_cast<std::size_t>(i)];
          for (std::int64_t n = 0; n < s.n; ++n) {
            sum.add(qd.numbers[static_cast<std::size_t>(i / s.k * s.n + n)] *
                    qw.numbers[static_cast<std::size_t>(n * s.k + i % s.k)] * qd.back * qw.back);
          }
          want.push_back(sum.value);
        }
        expect_within(
            d_x, want,
            [&](std::int64_t i) { return bound(sums[static_cast<std::size_t>(i)], 0, s.n, to); },
            "d_x");
      }
    }
  });
}

// Bias gradients are sums of d_y as it is.
TEST(Fp8Products, WeightGradientsAgreeWithDouble) {
  for_products([](Device& device, DType type) {
    for (const Shape& s : kShapes) {
      const auto d_y = spread(type, {s.m, s.n}, 1, s.gap), x = spread(type, {s.m, s.k}, 2, s.gap);
      const Quantized qd = quantized<E5m2>(d_y), qx = quantized<E4m3>(x);
      for (const Write write : {Write::overwrite, Write::add}) {
        const auto before = Tensor::random(DType::f32, {s.n, s.k}, 3, 0.1);
        const Tensor d_w = before.copy(), d_b(DType::f32, {s.n});
        run(device, LinearBackwardWeight{.d_y = d_y.view(),
                                         .x = x.view(),
                                         .d_weight = d_w.view(),
                                         .d_bias = write == Write::overwrite ? d_b.view() : View(),
                                         .write = write,
                                         .operands = Operands::fp8});
        std::vector<Sum> sums(static_cast<std::size_t>(s.n * s.k));
        Numbers want;
        for (std::int64_t i = 0; i < s.n * s.k; ++i) {
          Sum& sum = sums[static_cast<std::size_t>(i)];
          for (std::int64_t m = 0; m < s.m; ++m) {
            sum.add(qd.numbers[static_cast<std::size_t>(m * s.n + i / s.k)] *
                    qx.numbers[static_cast<std::size_t>(m * s.k + i % s.k)] * qd.back * qx.back);
          }
          want.push_back(sum.value + (write == Write::add ? before[i] : 0));
        }
        expect_within(
            d_w, want,
            [&](std::int64_t i) {
              return bound(sums[static_cast<std::size_t>(i)], before[i], s.m, DType::f32);
            },
            "d_weight");
        if (write == Write::add) continue;
        for (std::int64_t n = 0; n < s.n; ++n) {
          Sum sum;
          for (std::int64_t m = 0; m < s.m; ++m) sum.add(d_y[m * s.n + n]);
          EXPECT_NEAR(d_b[n], sum.value, 1.01 * static_cast<double>(s.m) * 0x1p-24 * sum.magnitude);
        }
      }
    }
  });
}

// By products with a unit matrix, each sum one code times the largest number.
TEST(Fp8Products, MultiplyTheVeryCodes) {
  for_products([](Device& device, DType type) {
    const std::int64_t m = 144, k = 80;
    Tensor unit(type, {k, k});
    for (std::int64_t i = 0; i < k; ++i) unit.set(i * k + i, 1);
    const auto x = spread(type, {m, k}, 5, 16);
    const Quantized codes = quantized<E4m3>(x), gradient_codes = quantized<E5m2>(x);
    const Tensor y(DType::f32, {m, k}), d_x(DType::f32, {m, k}), d_w(DType::f32, {k, m});
    run(device,
        Linear{.x = x.view(), .weight = unit.view(), .y = y.view(), .operands = Operands::fp8});
    run(device,
        LinearBackwardInput{
            .d_y = x.view(), .weight = unit.view(), .d_x = d_x.view(), .operands = Operands::fp8});
    for (std::int64_t i = 0; i < x.size(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      EXPECT_NEAR(y[i], codes.numbers[at] * codes.back, 0x1p-21 * std::abs(y[i])) << i;
      EXPECT_NEAR(d_x[i], gradient_codes.numbers[at] * gradient_codes.back,
                  0x1p-21 * std::abs(d_x[i]));
    }
    // Turned operands: d_weight (80, 144) = d_y^T (80, 144) times a unit matrix.
    Tensor wide_unit(type, {m, m});
    for (std::int64_t i = 0; i < m; ++i) wide_unit.set(i * m + i, 1);
    run(device, LinearBackwardWeight{.d_y = x.view(),
                                     .x = wide_unit.view(),
                                     .d_weight = d_w.view(),
                                     .operands = Operands::fp8});
    for (std::int64_t i = 0; i < x.size(); ++i) {
      const double got = d_w[i % k * m + i / k];
      EXPECT_NEAR(got, gradient_codes.numbers[static_cast<std::size_t>(i)] * gradient_codes.back,
                  0x1p-21 * std::abs(got));
    }
  });
}

TEST(Fp8Products, ApplyGelu) {
  for_products([](Device& device, DType type) {
    const Shape s{32, 48, 80, 0};
    const auto x = spread(type, {s.m, s.k}, 1), w = spread(type, {s.n, s.k}, 2),
               b = Tensor::random(type, {s.n}, 3), d = spread(type, {s.m, s.k}, 4),
               down = spread(type, {s.k, s.n}, 5);
    const Tensor before(type, {s.m, s.n}), y(type, {s.m, s.n}), want_before(type, {s.m, s.n}),
        want(type, {s.m, s.n}), d_up(type, {s.m, s.n}), want_d(type, {s.m, s.n});
    const Linear up{.x = x.view(),
                    .weight = w.view(),
                    .bias = b.view(),
                    .y = y.view(),
                    .preactivation = before.view(),
                    .operands = Operands::fp8};
    run(device, up);
    Linear product = product_of(up);
    product.y = want_before.view();
    run(device, product);
    run(device, Activate{.x = want_before.view(), .y = want.view()});
    EXPECT_TRUE(before.same_bits(want_before));
    EXPECT_TRUE(y.same_bits(want));
    const LinearBackwardInput back{.d_y = d.view(),
                                   .weight = down.view(),
                                   .d_x = d_up.view(),
                                   .preactivation = before.view(),
                                   .operands = Operands::fp8};
    run(device, back);
    LinearBackwardInput plain = product_of(back);
    plain.d_x = want_d.view();
    run(device, plain);
    run(device, ActivateBackward{.x = before.view(), .d_y = want_d.view(), .d_x = want_d.view()});
    EXPECT_TRUE(d_up.same_bits(want_d));
  });
}

// What the guard looks for in gradients comes through.
TEST(Fp8Products, OfWhatIsNotFiniteAreNotNumbers) {
  for_products([](Device& device, DType type) {
    for (const double bad :
         {-std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      for (const bool of_weight : {false, true}) {
        auto x = Tensor::random(type, {16, 32}, 1), w = Tensor::random(type, {48, 32}, 2);
        (of_weight ? w : x).set(77, bad);
        const Tensor y(type, {16, 48}), d_w(DType::f32, {48, 32});
        run(device,
            Linear{.x = x.view(), .weight = w.view(), .y = y.view(), .operands = Operands::fp8});
        for (std::int64_t i = 0; i < y.size(); ++i) EXPECT_TRUE(std::isnan(y[i])) << y[i];
        const auto d_y = Tensor::random(type, {16, 48}, 3);
        if (of_weight) continue;
        run(device, LinearBackwardWeight{.d_y = d_y.view(),
                                         .x = x.view(),
                                         .d_weight = d_w.view(),
                                         .write = Write::add,
                                         .operands = Operands::fp8});
        for (std::int64_t i = 0; i < d_w.size(); ++i) EXPECT_TRUE(std::isnan(d_w[i])) << d_w[i];
      }
    }
  });
}

TEST(Fp8Products, OfZerosAreZero) {
  for_products([](Device& device, DType type) {
    const Tensor zeros(type, {16, 32}), b = Tensor::random(type, {48}, 1);
    const auto w = Tensor::random(type, {48, 32}, 2);
    const Tensor y(type, {16, 48});
    run(device, Linear{.x = zeros.view(),
                       .weight = w.view(),
                       .bias = b.view(),
                       .y = y.view(),
                       .operands = Operands::fp8});
    for (std::int64_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], b[i % 48]);
  });
}

// Each sum has one term, so that its order, which a library may choose, is none.
TEST(Fp8Products, HaveTheSameCodesWhateverTheTeam) {
  const std::int64_t m = 48, k = 112;
  for (const DType type : {DType::f32, DType::bf16}) {
    Tensor unit(type, {k, k});
    for (std::int64_t i = 0; i < k; ++i) unit.set(i * k + i, 1);
    const auto x = spread(type, {m, k}, 5);
    std::vector<Tensor> results;
    const auto multiply = [&](Device& device) {
      results.push_back(Tensor(type, {m, k}));
      run(device, Linear{.x = x.view(),
                         .weight = unit.view(),
                         .y = results.back().view(),
                         .operands = Operands::fp8});
    };
    for (const Isa isa : isas()) {
      for (const int threads : {1, 2, 3, 7})
        multiply(*make_cpu_device({.threads = threads, .isa = isa}));
    }
    for (std::uint64_t seed = 1; seed < 4 && gpu() == Gpu::emulated; ++seed) {
      tessera::test::set_schedule(seed);
      multiply(*tessera::test::make_cuda_test_device());
    }
    for (const Tensor& result : results) EXPECT_TRUE(result.same_bits(results.front()));
  }
}

TEST(Fp8Products, RefuseWhatCublasWould) {
  const auto device = make_cpu_device({.threads = 1});
  const auto multiply = [&](DType type, std::int64_t m, std::int64_t n, std::int64_t k) {
    const Tensor x(type, {m, k}), w(type, {n, k}), y(type, {m, n});
    run(*device,
        Linear{.x = x.view(), .weight = w.view(), .y = y.view(), .operands = Operands::fp8});
  };
  EXPECT_NO_THROW(multiply(DType::bf16, 16, 16, 16));
  EXPECT_THROW(multiply(DType::bf16, 15, 16, 16), InternalError);
  EXPECT_THROW(multiply(DType::bf16, 16, 24, 16), InternalError);
  EXPECT_THROW(multiply(DType::bf16, 16, 16, 8), InternalError);
  EXPECT_THROW(multiply(DType::f16, 16, 16, 16), InternalError);
}

// cuBLASLt writes such products 16 bytes at a time.
TEST(Fp8Products, RefuseResultsOffTheirAlignment) {
  const auto device = make_cpu_device({.threads = 1});
  const std::int64_t n = 16;
  for (const DType type : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(to_string(type));
    const Tensor x(type, {n, n}), w(type, {n, n}), free(type, {n, n + 1}, 1);
    const std::int64_t lane = kFp8Alignment / size_of(type);
    const auto each = [&](const View& result, auto&& expect) {
      expect(Linear{.x = x.view(), .weight = w.view(), .y = result, .operands = Operands::fp8});
      expect(Linear{.x = x.view(),
                    .weight = w.view(),
                    .y = free.view().col_range(1, n),  // written by gelu, not by the product
                    .preactivation = result,
                    .operands = Operands::fp8});
      expect(LinearBackwardInput{
          .d_y = x.view(), .weight = w.view(), .d_x = result, .operands = Operands::fp8});
      expect(LinearBackwardWeight{
          .d_y = x.view(), .x = x.view(), .d_weight = result, .operands = Operands::fp8});
    };
    for (const auto& [column, gap] :
         {std::pair<std::int64_t, std::int64_t>{0, 0}, {lane, 0}, {0, lane}}) {
      const Tensor wide(type, {n, n + lane + gap});
      each(wide.view().col_range(column, n), [&](const auto& call) { run(*device, call); });
    }
    for (const auto& [column, gap] :
         {std::pair<std::int64_t, std::int64_t>{1, 0}, {lane / 2, 0}, {0, 1}, {0, lane / 2}}) {
      const Tensor wide(type, {n, n + lane + gap});
      each(wide.view().col_range(column, n), [&](const auto& call) {
        EXPECT_THROW(run(*device, call), InternalError) << column << " + " << gap;
      });
    }
  }
}

}  // namespace
}  // namespace tessera::kernels::test
