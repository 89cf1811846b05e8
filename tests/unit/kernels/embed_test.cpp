#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

constexpr std::int64_t kSamples = 3, kTokens = 11, kVocabulary = 7, kPositions = 16;

struct Places {
  Tensor tokens{DType::i32, {kSamples, kTokens}}, samples{DType::i64, {kSamples}};
  Places() {
    std::mt19937 random(1);  // token 6 never occurs, others repeat
    for (std::int64_t i = 0; i < tokens.size(); ++i) tokens.set(i, random() % 6);
    for (std::int64_t b = 0; b < kSamples; ++b) samples.set(b, static_cast<double>(b * b + 3));
  }
  Dropout dropout(float p) const {
    return {.p = p, .seed = 8, .site = 1, .samples = samples.view()};
  }
};

TEST(Embed, AddsTokenAndPositionRows) {
  for_devices_and_types([](Device& device, DType type) {
    const Places places;
    for (std::int64_t columns : {1, 17, 600}) {
      for (float p : {0.0F, 0.25F}) {
        for (bool with_positions : {true, false}) {
          const auto table = Tensor::random(type, {kVocabulary, columns}, 1, 1, 2);
          const auto positions = Tensor::random(type, {kPositions, columns}, 2);
          Tensor out(type, {kSamples, kTokens, columns}, 1);
          run(device, Embed{.tokens = places.tokens.view(),
                            .token_table = table.view(),
                            .position_table = with_positions ? positions.view() : View(),
                            .out = out.view(),
                            .first_position = 4,
                            .dropout = places.dropout(p)});
          Numbers want;
          for (std::int64_t i = 0; i < out.size(); ++i) {
            const std::int64_t place = i / columns, t = place % kTokens, c = i % columns;
            const auto token = static_cast<std::int64_t>(places.tokens[place]);
            double x = table[token * columns + c];
            if (with_positions) x += positions[(4 + t) * columns + c];
            want.push_back(x * dropout_factor(places.dropout(p), place / kTokens, t * columns + c));
          }
          expect_within(
              out, want,
              [&](std::int64_t i) {
                const double x = want[static_cast<std::size_t>(i)];
                return 0x1p-22 * std::abs(x) + write_error(type, x);
              },
              "out");
        }
      }
    }
  });
}

// Trap 24: repeated tokens, in a fixed order, without atomics.
TEST(EmbedBackward, AddsUpTheRowsOfEachToken) {
  for_devices_and_types([](Device& device, DType type) {
    const Places places;
    for (std::int64_t columns : {1, 17, 600}) {
      for (float p : {0.0F, 0.25F}) {
        for (Write write : {Write::overwrite, Write::add}) {
          const auto d = Tensor::random(type, {kSamples, kTokens, columns}, 5, 1, 3);
          const auto tokens0 = Tensor::random(DType::f32, {kVocabulary, columns}, 6, 1, 1);
          const auto positions0 = Tensor::random(DType::f32, {kPositions, columns}, 7);
          const Tensor d_tokens = tokens0.copy(), d_positions = positions0.copy();
          run(device, EmbedBackward{.tokens = places.tokens.view(),
                                    .d = d.view(),
                                    .d_token_table = d_tokens.view(),
                                    .d_position_table = d_positions.view(),
                                    .token_write = write,
                                    .position_write = write,
                                    .dropout = places.dropout(p)});
          const bool add = write == Write::add;
          Numbers want_tokens = add ? tokens0.numbers() : Numbers(tokens0.numbers().size());
          Numbers want_positions =
              add ? positions0.numbers() : Numbers(positions0.numbers().size());
          for (std::int64_t i = 0; i < d.size(); ++i) {
            const std::int64_t place = i / columns, t = place % kTokens, c = i % columns;
            const double x =
                d[i] * dropout_factor(places.dropout(p), place / kTokens, t * columns + c);
            const auto token = static_cast<std::int64_t>(places.tokens[place]);
            want_tokens[static_cast<std::size_t>(token * columns + c)] += x;
            want_positions[static_cast<std::size_t>(t * columns + c)] += x;
          }
          const double terms = kSamples * kTokens + 3;  // of at most 6 / (1 - p) each
          const auto bound = [&](std::int64_t) { return terms * terms * 0x1p-24 * 8; };
          expect_within(d_tokens, want_tokens, bound, "d_token_table");
          expect_within(d_positions, want_positions, bound, "d_position_table");
        }
      }
    }
  });
}

TEST(Embed, RefusesTokensBeyondTheVocabulary) {
  const auto device = make_cpu_device({.threads = 2});
  Places places;
  const Tensor table(DType::f32, {kVocabulary, 4}), out(DType::f32, {kSamples, kTokens, 4});
  Embed call{.tokens = places.tokens.view(), .token_table = table.view(), .out = out.view()};
  for (double token : {-1.0, static_cast<double>(kVocabulary)}) {
    places.tokens.set(5, token);
    EXPECT_THROW(device->run(call), InternalError);
  }
}

}  // namespace
}  // namespace tessera::kernels::test
