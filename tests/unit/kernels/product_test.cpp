// Products on a CPU to the bit: each element is a chain of multiply-adds, or several that are added
// in order, however the product is cut over threads and blocks.
#include "core/at.hpp"
#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

/// Rows of x, rows of the weight, columns of both.
struct Shape {
  std::int64_t m, n, k, gap;
};
/// Odd ones; a deep one of more rows than are packed at once; a depth of several blocks; then more
/// rows, or columns, than a block has; results that go past the caches.
const std::vector<Shape> kShapes = {{1, 1, 1, 0},       {7, 70, 33, 0},     {13, 129, 64, 1},
                                    {100, 65, 130, 2},  {110, 70, 1101, 1}, {3, 10, 6500, 0},
                                    {6500, 3, 10, 0},   {4, 3300, 20, 4},   {2, 600, 3200, 0},
                                    {2, 1700, 1700, 0}, {1100, 1000, 2, 0}, {2, 1100, 1000, 3}};

/// The instruction sets differ in whether multiply-adds round once.
float multiply_add(Isa isa, float a, float b, float c) {
  if (isa != Isa::baseline) return std::fma(a, b, c);
  const volatile float product = a * b;
  return product + c;
}

/// Of bf16 with instructions for matrices: of 32 elements those with even and those with odd places
/// are chains, whose sum is added.
template <typename A, typename B>
float chains_of_matrices(std::int64_t n, A&& a, B&& b) {
  float sum = 0;
  for (std::int64_t i = 0; i < n; i += 32) {
    float parts[2] = {0, 0};
    for (std::int64_t j = i; j < std::min(n, i + 32); ++j) {
      float& part = at(parts, j % 2);
      part = std::fma(a(j), b(j), part);
    }
    sum += parts[0] + parts[1];
  }
  return sum;
}

/// a(i) b(i) over [0, n), added in the order in which operands of this type are.
template <typename A, typename B>
float chain(Isa isa, DType type, std::int64_t n, A&& a, B&& b) {
  if (isa == Isa::amx && type == DType::bf16) return chains_of_matrices(n, a, b);
  float sum = 0;
  const bool pairs = type == DType::bf16;  // of which the later one comes first
  for (std::int64_t i = 0; i < (pairs ? round_up(n, 2) : n); ++i) {
    const std::int64_t at = pairs ? i ^ 1 : i;
    const bool there = at < n;  // a last one that is alone has a zero beside it
    sum = multiply_add(isa, there ? a(at) : 0.0F, there ? b(at) : 0.0F, sum);
  }
  return sum;
}

/// What is read there, if only to be multiplied by 0, shows.
void not_numbers_between_rows(const View& v) {
  for (std::int64_t r = 0; r + 1 < v.rows(); ++r) {
    std::memset(v.data + (r * v.ld + v.cols()) * size_of(v.type), 0xff,
                static_cast<std::size_t>((v.ld - v.cols()) * size_of(v.type)));
  }
}

struct Operands {
  Operands(const Shape& shape, DType type)
      : s(shape),
        x(Tensor::random(type, {s.m, s.k}, 1, 1, s.gap)),
        w(Tensor::random(type, {s.n, s.k}, 2, 1, s.gap)),
        d_y(Tensor::random(type, {s.m, s.n}, 3, 1, s.gap)),
        bias(Tensor::random(type, {s.n}, 4)) {
    for (const Tensor* t : {&x, &w, &d_y}) not_numbers_between_rows(t->view());
  }
  Shape s;
  Tensor x, w, d_y, bias;
};

/// y, d_x, d_w of f32, and d_w of the operands' type that is added.
struct Results {
  Results(const Operands& of)
      : y(of.x.view().type, {of.s.m, of.s.n}, of.s.gap),
        d_x(of.x.view().type, {of.s.m, of.s.k}, of.s.gap),
        d_w(DType::f32, {of.s.n, of.s.k}, of.s.gap),
        added(Tensor::random(of.w.view().type, {of.s.n, of.s.k}, 2, 1, of.s.gap)) {}
  Tensor y, d_x, d_w, added;
};

std::vector<float> floats_of(const Tensor& t) {
  const Numbers numbers = t.numbers();
  return {numbers.begin(), numbers.end()};
}

Results chains_of(const Operands& of, Isa isa) {
  Results want(of);
  const auto [m, n, k, gap] = of.s;
  const DType type = of.x.view().type;
  const auto x = floats_of(of.x), w = floats_of(of.w), d_y = floats_of(of.d_y);
  for (std::int64_t i = 0; i < m * n; ++i) {
    const float sum = chain(
        isa, type, k, [&](std::int64_t j) { return at(x, i / n * k + j); },
        [&](std::int64_t j) { return at(w, i % n * k + j); });
    want.y.set(i, sum + static_cast<float>(of.bias[i % n]));
  }
  for (std::int64_t i = 0; i < m * k; ++i) {
    want.d_x.set(i, chain(
                        isa, type, n, [&](std::int64_t j) { return at(d_y, i / k * n + j); },
                        [&](std::int64_t j) { return at(w, j * k + i % k); }));
  }
  for (std::int64_t i = 0; i < n * k; ++i) {
    const float sum = chain(
        isa, type, m, [&](std::int64_t j) { return at(d_y, j * n + i / k); },
        [&](std::int64_t j) { return at(x, j * k + i % k); });
    want.d_w.set(i, sum);
    want.added.set(i, at(w, i) + sum);
  }
  return want;
}

Results products_of(const Operands& of, Device& device) {
  Results got(of);
  run(device,
      Linear{.x = of.x.view(), .weight = of.w.view(), .bias = of.bias.view(), .y = got.y.view()});
  run(device,
      LinearBackwardInput{.d_y = of.d_y.view(), .weight = of.w.view(), .d_x = got.d_x.view()});
  run(device,
      LinearBackwardWeight{.d_y = of.d_y.view(), .x = of.x.view(), .d_weight = got.d_w.view()});
  run(device, LinearBackwardWeight{.d_y = of.d_y.view(),
                                   .x = of.x.view(),
                                   .d_weight = got.added.view(),
                                   .write = Write::add});
  return got;
}

void expect_bits(const Results& got, const Results& want) {
  EXPECT_TRUE(got.y.same_bits(want.y) && got.y.gaps_intact());
  EXPECT_TRUE(got.d_x.same_bits(want.d_x) && got.d_x.gaps_intact());
  EXPECT_TRUE(got.d_w.same_bits(want.d_w) && got.d_w.gaps_intact());
  EXPECT_TRUE(got.added.same_bits(want.added) && got.added.gaps_intact());
}

TEST(Products, AreChainsInTheOrderOfTheDepth) {
  for (const Shape& shape : kShapes) {
    for (const DType type : kTypes) {
      const Operands of(shape, type);
      for (const Isa isa : isas_of_products()) {
        if (isa == Isa::v3 && best_isa() >= Isa::v4 && shape.m * shape.n * shape.k > 1'000'000)
          continue;                                            // v4 is to have the same bits
        if (isa == Isa::amx && type != DType::bf16) continue;  // v4's
        const Results want = chains_of(of, isa);
        for (const int threads : {1, 3, 8}) {
          SCOPED_TRACE(fmt::format("{} {}, ({}, {}) ({}, {}), {} threads", enum_word(isa),
                                   to_string(type), shape.m, shape.k, shape.n, shape.k, threads));
          expect_bits(products_of(of, *make_cpu_device({.threads = threads, .isa = isa})), want);
          if (isa != Isa::amx) continue;
          SCOPED_TRACE("few rows");  // of which matrices have the same bits
          expect_bits(products_of(of, *make_cpu_device({threads, isa, /*few_rows=*/true})), want);
        }
      }
    }
  }
}

// An expert's rows are a product of their own, in scratch that is measured for as many as there may
// be.
TEST(Products, OfLessNeedNoMoreScratch) {
  for (const int threads : {1, 3, 64}) {
    const auto device = make_cpu_device({.threads = threads});
    for (const DType type : kTypes) {
      std::int64_t before = 0;
      for (std::int64_t rows = 16; rows <= 8192; rows += 16) {
        std::byte anywhere{};
        const auto of = [&](DType t, std::int64_t m, std::int64_t n) {
          return View(&anywhere, t, {m, n});
        };
        const View x = of(type, rows, 96), d_y = of(type, rows, 4000), w = of(type, 4000, 96),
                   d_w = of(DType::f32, 4000, 96);
        const std::int64_t bytes =
            device->scratch_bytes(LinearBackwardWeight{.d_y = d_y, .x = x, .d_weight = d_w});
        ASSERT_GE(bytes, before) << rows;
        before = bytes;
        for (const std::int64_t fewer : {std::int64_t{16}, rows / 32 * 16}) {
          if (fewer == 0) continue;
          ASSERT_LE(device->scratch_bytes(
                        Linear{.x = of(type, fewer, 96), .weight = w, .y = of(type, fewer, 4000)}),
                    device->scratch_bytes(Linear{.x = x, .weight = w, .y = d_y}));
          ASSERT_LE(device->scratch_bytes(LinearBackwardInput{
                        .d_y = of(type, fewer, 4000), .weight = w, .d_x = of(type, fewer, 96)}),
                    device->scratch_bytes(LinearBackwardInput{.d_y = d_y, .weight = w, .d_x = x}));
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::kernels::test
