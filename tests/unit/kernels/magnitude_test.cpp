#include "core/at.hpp"
#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

// A sum of n squares adds n times, and each square is of a rounded sum of two: n + 4 roundings.
TEST(RowSquares, AgreesWithDouble) {
  for_devices_and_types([](Device& device, DType type) {
    for (const std::int64_t columns : {1, 17, 64, 1031}) {
      for (const std::int64_t gap : {0, 3}) {
        const std::int64_t rows = 5;
        const auto weight = Tensor::random(type, {rows, columns}, 1, 1, gap);
        const auto update = Tensor::random(DType::f32, {rows, columns}, 2, 1, gap);
        Tensor out(DType::f32, {rows});
        run(device, RowSquares{.weight = weight.view(),
                               .update = update.view(),
                               .scale = 0.3F,
                               .out = out.view()});
        Numbers want(static_cast<std::size_t>(rows)), size = want;
        for (std::int64_t i = 0; i < rows * columns; ++i) {
          const double w = weight[i], u = static_cast<double>(0.3F) * update[i];
          at(want, i / columns) += (w + u) * (w + u);
          at(size, i / columns) += (std::abs(w) + std::abs(u)) * (std::abs(w) + std::abs(u));
        }
        expect_within(
            out, want,
            [&](std::int64_t i) {
              return 0x1p-24 * static_cast<double>(columns + 4) * at(size, i);
            },
            fmt::format("{} columns", columns).c_str());
      }
    }
  });
}

struct Columns {
  std::int64_t rows = 70, columns = 37, gap = 3;
  Tensor magnitude, squares, bias;
  explicit Columns(DType type)
      : magnitude(Tensor::random(DType::f32, {columns}, 3)),
        squares(DType::f32, {columns}),
        bias(Tensor::random(type, {columns}, 4)) {
    for (std::int64_t c = 0; c < columns; ++c)
      squares.set(c, c == 5 ? 0 : 0.5 + static_cast<double>(c));
  }
  double factor(std::int64_t c) const {
    return squares[c] == 0 ? 1 : magnitude[c] / std::sqrt(squares[c]);
  }
};

// A root, a quotient, a product and a sum, each off by u of what is added up.
TEST(ScaleColumns, AgreesWithDouble) {
  for_devices_and_types([](Device& device, DType type) {
    for (const auto& [of_x, of_factors] :
         {std::pair{type, type}, std::pair{DType::f32, type}, std::pair{DType::f32, DType::bf16}}) {
      const Columns s(of_factors);
      const auto x = Tensor::random(of_x, {s.rows, s.columns}, 1, 1, s.gap);
      for (const bool scaled : {true, false}) {
        for (const bool biased : {true, false}) {
          if (!scaled && !biased) continue;
          Tensor out(type, {s.rows, s.columns}, s.gap);
          run(device, ScaleColumns{.x = x.view(),
                                   .magnitude = scaled ? s.magnitude.view() : View(),
                                   .squares = scaled ? s.squares.view() : View(),
                                   .bias = biased ? s.bias.view() : View(),
                                   .out = out.view()});
          EXPECT_TRUE(out.gaps_intact());
          Numbers want, size;
          for (std::int64_t i = 0; i < x.size(); ++i) {
            const std::int64_t c = i % s.columns;
            const double product = x[i] * (scaled ? s.factor(c) : 1), b = biased ? s.bias[c] : 0;
            want.push_back(product + b);
            size.push_back(std::abs(product) + std::abs(b));
          }
          expect_within(
              out, want,
              [&](std::int64_t i) {
                return 0x1p-22 * at(size, i) + write_error(type, at(want, i));
              },
              fmt::format("of {}, scaled {}, biased {}", to_string(of_x), scaled, biased).c_str());
        }
      }
    }
  });
}

// A sum of n products adds n times; a root and a quotient follow, and what was there is added.
TEST(MagnitudeBackward, AgreesWithDouble) {
  for_devices_and_types([](Device& device, DType type) {
    const Columns s(type);
    const auto d_y = Tensor::random(type, {s.rows, s.columns}, 1, 1, s.gap);
    const auto x = Tensor::random(type, {s.rows, s.columns}, 2);
    for (const Write write : {Write::overwrite, Write::add}) {
      const auto before = Tensor::random(DType::f32, {s.columns}, 5);
      Tensor out = before.copy();
      run(device, MagnitudeBackward{.d_y = d_y.view(),
                                    .x = x.view(),
                                    .squares = s.squares.view(),
                                    .out = out.view(),
                                    .write = write});
      Numbers want(static_cast<std::size_t>(s.columns)), size = want;
      for (std::int64_t i = 0; i < x.size(); ++i) {
        const std::int64_t c = i % s.columns;
        if (s.squares[c] == 0) continue;
        at(want, c) += d_y[i] * x[i] / std::sqrt(s.squares[c]);
        at(size, c) += std::abs(d_y[i] * x[i]) / std::sqrt(s.squares[c]);
      }
      for (std::int64_t c = 0; write == Write::add && c < s.columns; ++c)
        at(want, c) += before[c], at(size, c) += std::abs(before[c]);
      expect_within(
          out, want,
          [&](std::int64_t c) { return 0x1p-24 * static_cast<double>(s.rows + 3) * at(size, c); },
          write == Write::add ? "added" : "written");
    }
  });
}

}  // namespace
}  // namespace tessera::kernels::test
