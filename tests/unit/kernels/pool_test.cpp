#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

/// The pooled tokens of sample b: those of the first `first` tokens, of all without documents.
Range pooled(Pooling kind, std::int64_t first) {
  if (kind == Pooling::mean) return {0, first};
  return kind == Pooling::first ? Range{0, 1} : Range{first - 1, first};
}

/// Sample b has a document of b + 1 tokens, then one of the others.
Tensor documents_of(std::int64_t samples, std::int64_t tokens) {
  Tensor documents(DType::i32, {samples, tokens, 2});
  for (std::int64_t b = 0; b < samples; ++b) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t at = 2 * (b * tokens + t);
      documents.set(at, static_cast<double>(t <= b ? 0 : b + 1));
      documents.set(at + 1, static_cast<double>(t <= b ? b + 1 : tokens));
    }
  }
  return documents;
}

// A mean of n terms adds n - 1 times and multiplies with a rounded 1 / n, each off by u of at most
// the sum of sizes.
TEST(Pool, AgreesWithDouble) {
  for_devices_and_types([](Device& device, DType type) {
    const std::int64_t samples = 4, tokens = 7;
    const Tensor documents = documents_of(samples, tokens);
    for (const std::int64_t columns : {1, 17, 101}) {
      const auto x = Tensor::random(type, {samples, tokens, columns}, 1, 2, 3);
      const auto d = Tensor::random(type, {samples, columns}, 2, 1, 3);
      for (const Pooling kind : {Pooling::mean, Pooling::first, Pooling::last}) {
        for (const bool within : {false, true}) {
          Tensor out(type, {samples, columns}), d_x(type, {samples, tokens, columns});
          const View table = within ? documents.view() : View();
          run(device, Pool{.x = x.view(), .documents = table, .out = out.view(), .kind = kind});
          run(device,
              PoolBackward{.d_out = d.view(), .documents = table, .d_x = d_x.view(), .kind = kind});
          Numbers want, size, want_d;
          for (std::int64_t i = 0; i < samples * columns; ++i) {
            const std::int64_t b = i / columns;
            const Range all = pooled(kind, within ? b + 1 : tokens);
            double sum = 0, sizes = 0;
            for (std::int64_t t = all.begin; t < all.end; ++t) {
              const double v = x[(b * tokens + t) * columns + i % columns];
              sum += v, sizes += std::abs(v);
            }
            want.push_back(sum / static_cast<double>(all.count()));
            size.push_back(sizes / static_cast<double>(all.count()));
          }
          for (std::int64_t i = 0; i < samples * tokens * columns; ++i) {
            const std::int64_t b = i / columns / tokens, t = i / columns % tokens;
            const Range all = pooled(kind, within ? b + 1 : tokens);
            const bool in = t >= all.begin && t < all.end;
            want_d.push_back(in ? d[b * columns + i % columns] / static_cast<double>(all.count())
                                : 0);
          }
          expect_within(
              out, want,
              [&](std::int64_t i) {
                const auto at = static_cast<std::size_t>(i);
                return 0x1p-24 * (tokens + 1) * size[at] + write_error(type, want[at]);
              },
              "out");
          expect_within(
              d_x, want_d,
              [&](std::int64_t i) {
                const double w = want_d[static_cast<std::size_t>(i)];
                return 0x1p-23 * std::abs(w) + write_error(type, w);
              },
              "d_x");
        }
      }
    }
  });
}

}  // namespace
}  // namespace tessera::kernels::test
