// Products of cuBLASLt with a bias and gelu within them, at the sizes of real models, beside the
// f32 product with bias and gelu computed apart, in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/gpu/device.hpp"
#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

using cuda::Epilogue;

/// y (m, n), sums over k.
struct Sizes {
  std::int64_t m, n, k;
};
/// The feed-forward layers of GPT-2 1.5B, 8 sequences of 1,024 tokens, and of the widths of Llama
/// 8B, one of 4,096.
const std::vector<Sizes> kSizes = {{8192, 6400, 1600}, {4096, 14336, 4096}};

std::string text_of(const Sizes& s) { return fmt::format("{} x {} x {}", s.m, s.n, s.k); }

const double kU = 0x1p-24, kWritten = 0x1p-8;  // unit roundoffs of f32 and bf16
/// As in tests/unit/kernels/linear_test.cpp: of tanh.approx, and 60 u of the rest.
const double kTanh = 0x1p-10 + 60 * kU;
const double kSlope = 1.13;  // gelu's largest
const double kRoot = std::sqrt(2 / std::acos(-1.0));

double gelu(double x) { return 0.5 * x * (1 + std::tanh(kRoot * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) {
  const double t = std::tanh(kRoot * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kRoot * (1 + 3 * 0.044715 * x * x);
}

std::unique_ptr<DeviceTensor> normal(std::initializer_list<std::int64_t> shape, unsigned seed,
                                     double scale = 1) {
  auto made = std::make_unique<DeviceTensor>(DType::bf16, shape);
  made->write(normal_numbers(made->view().elements(), seed, scale));
  return made;
}

/// Norms of the rows of x (rows, columns), or of its columns.
enum class Of : std::uint8_t { rows, columns };
Numbers norms(const DeviceTensor& x, Of which) {
  const std::int64_t columns = x.view().cols();
  const Floats numbers = x.numbers();
  Numbers sums(static_cast<std::size_t>(which == Of::rows ? x.view().rows() : columns));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto c = static_cast<std::size_t>(columns);
    sums[which == Of::rows ? i / c : i % c] += static_cast<double>(numbers[i]) * numbers[i];
  }
  for (double& sum : sums) sum = std::sqrt(sum);
  return sums;
}

/// What two f32 sums of k products and a bias, each in any order, are apart: at most 2 k u sum |a
/// b| (Higham 2002, section 3.1), and the sum is no more than the product of both vectors' norms.
struct SumsApart {
  Numbers left, right;  // norms, by row and by column of the product
  Floats bias;          // or empty
  std::int64_t k;

  double operator()(std::size_t i) const {
    const std::size_t n = right.size();
    const double magnitude = left[i / n] * right[i % n] +
                             (bias.empty() ? 0 : std::abs(static_cast<double>(bias[i % n])));
    return 2 * 1.01 * static_cast<double>(k + 1) * kU * magnitude;
  }
};

/// |got - want(i)| <= bound(i), element by element.
template <typename Want, typename Bound>
void expect_bounded(const Floats& got, Want&& want, Bound&& bound, const char* what) {
  const auto share = [&](std::int64_t j) {
    const auto i = static_cast<std::size_t>(j);
    const double off = std::abs(got[i] - want(i)) / bound(i);
    return std::isnan(off) ? std::numeric_limits<double>::infinity() : off;
  };
  double worst = 0;
  const auto count = static_cast<std::int64_t>(got.size());
#pragma omp parallel for reduction(max : worst)
  for (std::int64_t j = 0; j < count; ++j) worst = std::max(worst, share(j));
  note_error(worst);
  if (worst <= 1) return;
  std::int64_t j = 0;
  while (share(j) < worst) ++j;
  const auto i = static_cast<std::size_t>(j);
  ADD_FAILURE() << what << "[" << i << "] = " << got[i] << ", expected " << want(i) << " within "
                << bound(i);
}

// The bounds above hold for any numbers; of these, whose signs are independent, sums err by far
// less than roundings of what is written: one or two, each by 2^-8 / sqrt(3) in the mean of
// squares. Four times the larger is allowed, for kernels' tiles. 32 of 4,096 products that a tile
// lacks or has twice make sqrt(32 / 4096) > 2^-4.
constexpr double kPart = 0x1p-6;
constexpr std::int64_t kTile = 128;

template <typename Want>
void expect_near_by_tiles(const Floats& got, Want&& want, const Sizes& s, const char* what) {
  const std::int64_t across = s.n / kTile, tiles = s.m / kTile * across;
  Numbers shares(static_cast<std::size_t>(tiles));
#pragma omp parallel for
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    double difference = 0, norm = 0;
    for (std::int64_t e = 0; e < kTile * kTile; ++e) {
      const std::int64_t row = tile / across * kTile + e / kTile,
                         column = tile % across * kTile + e % kTile;
      const auto i = static_cast<std::size_t>(row * s.n + column);
      difference += std::pow(got[i] - want(i), 2), norm += std::pow(want(i), 2);
    }
    shares[static_cast<std::size_t>(tile)] = std::sqrt(difference / norm) / kPart;
  }
  for (std::size_t tile = 0; tile < shares.size(); ++tile) {
    note_error(shares[tile]);
    ASSERT_LE(shares[tile], 1) << what << ", tile " << tile << " of " << across << " a row";
  }
}

/// The product with what is within it, in parts, or what is faster of these.
enum class Choice : std::uint8_t { whole, apart, faster };

/// Chooses the call's product, and says whether the library computes `epilogue` within it: else
/// nothing is compared.
template <typename Call>
void choose(GpuRank& gpu, const Call& call, Epilogue epilogue, Choice how) {
  cuda::Matmul& matmul = gpu.libraries().matmul;
  const cuda::GemmKey key = cuda::gemm_of(call, gpu.rules).key;
  EXPECT_EQ(key.epilogue, epilogue);
  EXPECT_TRUE(matmul.takes(key)) << "cuBLASLt refuses " << cuda::text_of(key);
  if (how == Choice::apart) {
    matmul.adopt({.machine = matmul.machine(), .chosen = {}, .apart = {key}}, {&key, 1});
    EXPECT_NE(matmul.product_for(call, gpu.rules).key, key);
    return;
  }
  const DeviceTensor memory(DType::u8, {cuda::Matmul::timing_bytes({&key, 1})});
  matmul.choose({&key, 1}, cuda::AlgorithmChoice::timed, memory.view(),
                how == Choice::faster ? gpu.own_kernels() : cuda::OwnKernels());
  // What is chosen is there for each part, and for no product twice.
  const cuda::AlgorithmTable table = matmul.table();
  const bool apart = table.apart.contains(key);
  EXPECT_EQ(table.chosen.contains(key), !apart);
  EXPECT_TRUE(how == Choice::faster || !apart);
  EXPECT_TRUE(table.chosen.contains(matmul.product_for(call, gpu.rules).key));
}

void expect_bias_and_gelu(const Sizes& s, Choice how) {
  SCOPED_TRACE(text_of(s));
  GpuRank gpu;
  const auto x = normal({s.m, s.k}, 1), bias = normal({s.n}, 3),
             weight = normal({s.n, s.k}, 2, 1 / std::sqrt(static_cast<double>(s.k)));
  const DeviceTensor y(DType::bf16, {s.m, s.n}), before(DType::bf16, {s.m, s.n}),
      biased(DType::bf16, {s.m, s.n}), sums(DType::f32, {s.m, s.n});
  Linear call{.x = x->view(), .weight = weight->view(), .y = sums.view()};
  gpu.run(call);
  call.bias = bias->view(), call.y = biased.view();
  choose(gpu, call, Epilogue::none, how);
  gpu.run(call);
  call.y = y.view(), call.preactivation = before.view();
  choose(gpu, call, Epilogue::gelu, how);
  gpu.run(call);

  const Floats z = sums.numbers(), b = bias->numbers(), of = before.numbers();
  const SumsApart apart{norms(*x, Of::rows), norms(*weight, Of::rows), b, s.k};
  const auto argument = [&](std::size_t i) { return z[i] + static_cast<double>(b[i % b.size()]); };
  // The library may round a product before it adds the bias, and then the sum.
  const auto off = [&](std::size_t i) {
    return 1.01 * (apart(i) + kWritten * (std::abs(z[i]) + std::abs(argument(i))));
  };
  for (const DeviceTensor* written : {&before, &biased}) {
    const Floats got = written->numbers();
    expect_bounded(got, argument, off, "a product and a bias");
    expect_near_by_tiles(got, argument, s, "a product and a bias");
  }
  const Floats got = y.numbers();
  const auto want = [&](std::size_t i) { return gelu(argument(i)); };
  const auto activation = [&](double x_i, double y_i) {
    return kTanh * (1 + std::abs(x_i)) + 1.01 * kWritten * std::abs(y_i);
  };
  expect_bounded(
      got, want,
      [&](std::size_t i) { return 1.01 * kSlope * off(i) + activation(argument(i), want(i)); },
      "gelu");
  // Of the preactivation as written, or of what it was before: whatever k is.
  const auto want_of = [&](std::size_t i) { return gelu(of[i]); };
  expect_bounded(
      got, want_of,
      [&](std::size_t i) {
        const double moved = 1.01 * kSlope * kWritten * std::abs(of[i]);
        return moved + activation(of[i], std::abs(want_of(i)) + moved);
      },
      "gelu of the preactivation");
}

TEST(CublasLt, BiasAndGeluWithinAProductAgreeWithThemApart) {
  for (const Sizes& s : kSizes) expect_bias_and_gelu(s, Choice::whole);
}
TEST(CublasLt, BiasAndGeluAgreeWhereTheyAreChosenApart) {
  for (const Choice how : {Choice::faster, Choice::apart}) expect_bias_and_gelu(kSizes[0], how);
}

void expect_gelus_slope(const Sizes& s, Choice how) {
  SCOPED_TRACE(text_of(s));
  GpuRank gpu;
  const auto d_y = normal({s.m, s.k}, 1), before = normal({s.m, s.n}, 3),
             weight = normal({s.k, s.n}, 2, 1 / std::sqrt(static_cast<double>(s.k)));
  const DeviceTensor d_x(DType::bf16, {s.m, s.n}), sums(DType::f32, {s.m, s.n});
  LinearBackwardInput call{.d_y = d_y->view(), .weight = weight->view(), .d_x = sums.view()};
  gpu.run(call);
  call.d_x = d_x.view(), call.preactivation = before->view();
  choose(gpu, call, Epilogue::gelu_slope, how);
  gpu.run(call);

  const Floats z = sums.numbers(), of = before->numbers(), got = d_x.numbers();
  const SumsApart apart{norms(*d_y, Of::rows), norms(*weight, Of::columns), {}, s.k};
  const auto want = [&](std::size_t i) { return z[i] * gelu_slope(of[i]); };
  // As tests/unit/kernels/linear_test.cpp has it; and the library may round the product.
  const auto bound = [&](std::size_t i) {
    const double sum = std::abs(z[i]) + apart(i);
    return 1.01 *
           (kSlope * (apart(i) + kWritten * sum) + 8 * kTanh * sum + kWritten * std::abs(want(i)));
  };
  expect_bounded(got, want, bound, "a product and gelu's slope");
  expect_near_by_tiles(got, want, s, "a product and gelu's slope");
}

TEST(CublasLt, GelusSlopeWithinAProductAgreesWithItApart) {
  for (const Sizes& s : kSizes) expect_gelus_slope(s, Choice::whole);
}
TEST(CublasLt, GelusSlopeAgreesWhereItIsChosenApart) {
  for (const Choice how : {Choice::faster, Choice::apart}) expect_gelus_slope(kSizes[0], how);
}

}  // namespace
}  // namespace tessera::kernels::test
