#include "core/at.hpp"
#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

/// The documents of sample b of seven tokens: of b + 1, of 2, and of those that are left.
std::vector<Range> documents_of(std::int64_t b, std::int64_t tokens) {
  return {{0, b + 1}, {b + 1, b + 3}, {b + 3, tokens}};
}

Tensor table_of(std::int64_t samples, std::int64_t tokens) {
  Tensor table(DType::i32, {samples, tokens, 2});
  for (std::int64_t b = 0; b < samples; ++b) {
    for (const Range document : documents_of(b, tokens)) {
      for (std::int64_t t = document.begin; t < document.end; ++t) {
        table.set(2 * (b * tokens + t), static_cast<double>(document.begin));
        table.set(2 * (b * tokens + t) + 1, static_cast<double>(document.end));
      }
    }
  }
  return table;
}

/// Those of a document's tokens that are pooled.
Range pooled(Pooling kind, Range document) {
  if (kind == Pooling::mean) return document;
  return kind == Pooling::first ? Range{document.begin, document.begin + 1}
                                : Range{document.end - 1, document.end};
}

/// What pooling is to give, in double precision.
struct Pooled {
  Numbers out, size, d_x;  // `size`: the sum of sizes that an output is made of

  Pooled(const Tensor& x, const Tensor& d, bool within, std::int64_t most, Pooling kind) {
    const std::int64_t samples = x.view().extent(0), tokens = x.view().extent(1),
                       columns = x.view().cols();
    out.resize(static_cast<std::size_t>(samples * most * columns));
    size.resize(out.size());
    d_x.resize(static_cast<std::size_t>(samples * tokens * columns));
    for (std::int64_t b = 0; b < samples; ++b) {
      const auto all = within ? documents_of(b, tokens) : std::vector<Range>{{0, tokens}};
      for (std::int64_t k = 0; k < std::min(most, std::ssize(all)); ++k) {
        const Range of = pooled(kind, at(all, k));
        const double share = 1 / static_cast<double>(of.count());
        for (std::int64_t c = 0; c < columns; ++c) {
          const std::int64_t to = (b * most + k) * columns + c;
          for (std::int64_t t = of.begin; t < of.end; ++t) {
            const std::int64_t from = (b * tokens + t) * columns + c;
            at(out, to) += share * x[from];
            at(size, to) += share * std::abs(x[from]);
            at(d_x, from) = share * d[to];
          }
        }
      }
    }
  }
};

// A mean of n terms adds n - 1 times and multiplies with a rounded 1 / n, each off by u of at most
// the sum of sizes. Of no document: 0.
TEST(Pool, AgreesWithDouble) {
  for_devices_and_types([](Device& device, DType type) {
    const std::int64_t samples = 4, tokens = 7;
    const Tensor documents = table_of(samples, tokens);
    for (const std::int64_t columns : {1, 17, 101}) {
      const auto x = Tensor::random(type, {samples, tokens, columns}, 1, 2, 3);
      for (const std::int64_t most : {1, 2, 5}) {
        const auto d = Tensor::random(type, {samples * most, columns}, 2, 1, 3);
        for (const Pooling kind : {Pooling::mean, Pooling::first, Pooling::last}) {
          for (const bool within : {false, true}) {
            Tensor out(type, {samples * most, columns}), d_x(type, {samples, tokens, columns});
            const View table = within ? documents.view() : View();
            run(device, Pool{.x = x.view(), .documents = table, .out = out.view(), .kind = kind});
            run(device,
                PoolBackward{
                    .d_out = d.view(), .documents = table, .d_x = d_x.view(), .kind = kind});
            const Pooled want(x, d, within, most, kind);
            expect_within(
                out, want.out,
                [&](std::int64_t i) {
                  return 0x1p-24 * (tokens + 1) * at(want.size, i) +
                         write_error(type, at(want.out, i));
                },
                "out");
            expect_within(
                d_x, want.d_x,
                [&](std::int64_t i) {
                  const double w = at(want.d_x, i);
                  return 0x1p-23 * std::abs(w) + write_error(type, w);
                },
                "d_x");
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace tessera::kernels::test
