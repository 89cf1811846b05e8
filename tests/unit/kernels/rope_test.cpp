#include "kernels/common/rope.hpp"

#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

TEST(Rope, TurnsPairsAndBack) {
  for_devices_and_types([](Device& device, DType type) {
    const std::int64_t samples = 2, tokens = 37, heads = 3, dim = 10, first = 1000;
    const auto x0 = Tensor::random(type, {samples, tokens, heads * dim}, 1, 1, 3);
    const Tensor x = x0.copy();
    Rope call{.x = x.view(), .head_dim = dim, .first_position = first};
    run(device, call);
    Numbers want(static_cast<std::size_t>(x0.size())), bound = want;
    for (std::int64_t r = 0; r < samples * tokens; ++r) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t i = 0; i < dim / 2; ++i) {
          const double angle = static_cast<double>(first + r % tokens) *
                               std::pow(1e4, -2.0 * static_cast<double>(i) / dim);
          const std::int64_t low = (r * heads + h) * dim + i, high = low + dim / 2;
          const double a = x0[low], b = x0[high];
          want[static_cast<std::size_t>(low)] = a * std::cos(angle) - b * std::sin(angle);
          want[static_cast<std::size_t>(high)] = a * std::sin(angle) + b * std::cos(angle);
          // Cosine and sine are rounded once, products and their sum once each.
          bound[static_cast<std::size_t>(low)] = bound[static_cast<std::size_t>(high)] =
              3 * 0x1p-24 * (std::abs(a) + std::abs(b));
        }
      }
    }
    expect_within(
        x, want,
        [&](std::int64_t i) {
          const auto j = static_cast<std::size_t>(i);
          return bound[j] + write_error(type, std::abs(want[j]) + bound[j]);
        },
        "x");
    call.direction = Rope::Direction::inverse;
    run(device, call);
    expect_within(
        x, x0.numbers(),
        [&](std::int64_t i) {  // twice the above; a turn mixes the pair's magnitudes
          const std::int64_t pair = i % dim < dim / 2 ? i + dim / 2 : i - dim / 2;
          return 2 * (3 * 0x1p-24 + 1.01 * roundoff(type)) * (std::abs(x0[i]) + std::abs(x0[pair]));
        },
        "x turned back");
  });
}

TEST(Rope, APositionTurnsAlikeWhereverACallBegins) {
  for_devices([](Device& device) {
    const auto x0 = Tensor::random(DType::f32, {1, 100, 8}, 1);
    const Tensor whole = x0.copy(), parts = x0.copy();
    run(device, Rope{.x = whole.view(), .head_dim = 8, .first_position = 5});
    const View head(parts.view().data, DType::f32, {1, 37, 8});
    const View tail(parts.view().data + 37 * 8 * 4, DType::f32, {1, 63, 8});
    run(device, Rope{.x = head, .head_dim = 8, .first_position = 5});
    run(device, Rope{.x = tail, .head_dim = 8, .first_position = 42});
    EXPECT_TRUE(parts.same_bits(whole));
  });
}

/// Positions of tokens in documents of these lengths.
std::vector<std::int64_t> positions_in(const std::vector<std::int64_t>& lengths, Tensor& table) {
  std::vector<std::int64_t> positions;
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    for (std::int64_t t = 0; t < length; ++t) {
      table.set(2 * (begin + t), static_cast<double>(begin));
      table.set(2 * (begin + t) + 1, static_cast<double>(begin + length));
      positions.push_back(t);
    }
    begin += length;
  }
  return positions;
}

TEST(Rope, PositionsRestartWithDocuments) {
  for_devices_and_types([](Device& device, DType type) {
    const std::int64_t tokens = 100, dim = 8;
    Tensor documents(DType::i32, {1, tokens, 2});
    const auto positions = positions_in({1, 64, 33, 2}, documents);
    const auto x0 = Tensor::random(type, {1, tokens, 2 * dim}, 1);
    const Tensor x = x0.copy();
    run(device, Rope{.x = x.view(), .documents = documents.view(), .head_dim = dim});
    for (std::int64_t t = 0; t < tokens; ++t) {
      const Tensor alone = positions_of(x0, t, 1);
      run(device, Rope{.x = alone.view(),
                       .head_dim = dim,
                       .first_position = positions[static_cast<std::size_t>(t)]});
      EXPECT_TRUE(positions_of(x, t, 1).same_bits(alone)) << t;
    }
  });
}

// A head of R columns is what the first R columns of a wider one are.
TEST(Rope, ColumnsBeyondTheRotaryOnesStay) {
  for_devices_and_types([](Device& device, DType type) {
    for (const std::int64_t turned : {2, 8, 14, 32}) {
      const std::int64_t heads = 2, tokens = 40, dim = 40;
      const auto x0 = Tensor::random(type, {1, tokens, heads * dim}, 1, 1, 2);
      const Tensor x = x0.copy();
      Tensor narrow(type, {1, tokens, heads * turned});
      const auto wide_place = [&](std::int64_t i) { return i / turned * dim + i % turned; };
      for (std::int64_t i = 0; i < narrow.size(); ++i) narrow.set(i, x0[wide_place(i)]);
      run(device, Rope{.x = x.view(), .head_dim = dim, .rotary_dim = turned, .first_position = 7});
      run(device, Rope{.x = narrow.view(), .head_dim = turned, .first_position = 7});
      for (std::int64_t i = 0; i < narrow.size(); ++i) ASSERT_EQ(narrow[i], x[wide_place(i)]) << i;
      for (std::int64_t i = 0; i < x.size(); ++i) {
        if (i % dim < turned) continue;
        ASSERT_EQ(x[i], x0[i]) << i;
      }
      EXPECT_TRUE(x.gaps_intact());
    }
  });
}

// The columns that turn may lie anywhere in a head.
TEST(Rope, ColumnsBeforeTheRotaryOnesStay) {
  for_devices_and_types([](Device& device, DType type) {
    for (const RopePairs pairs : {RopePairs::halves, RopePairs::neighbours}) {
      for (const auto& [first, turned] : {std::pair{8, 32}, {6, 4}, {1, 14}, {16, 16}}) {
        const std::int64_t heads = 2, tokens = 40, dim = 40;
        const auto x0 = Tensor::random(type, {1, tokens, heads * dim}, 1, 1, 8);
        const Tensor x = x0.copy();
        Tensor narrow(type, {1, tokens, heads * turned});
        const auto wide_place = [&](std::int64_t i) {
          return i / turned * dim + first + i % turned;
        };
        for (std::int64_t i = 0; i < narrow.size(); ++i) narrow.set(i, x0[wide_place(i)]);
        run(device, Rope{.x = x.view(),
                         .head_dim = dim,
                         .rotary_dim = turned,
                         .first_column = first,
                         .first_position = 7,
                         .pairs = pairs});
        run(device,
            Rope{.x = narrow.view(), .head_dim = turned, .first_position = 7, .pairs = pairs});
        for (std::int64_t i = 0; i < narrow.size(); ++i)
          ASSERT_EQ(narrow[i], x[wide_place(i)]) << i;
        for (std::int64_t i = 0; i < x.size(); ++i) {
          if (i % dim >= first && i % dim < first + turned) continue;
          ASSERT_EQ(x[i], x0[i]) << i;
        }
        EXPECT_TRUE(x.gaps_intact());
      }
    }
  });
}

TEST(Rope, NeighboursTurnAsHalvesDo) {
  for_devices_and_types([](Device& device, DType type) {
    for (const std::int64_t turned : {2, 8, 14, 32, 34, 64}) {
      const std::int64_t heads = 2, tokens = 40, dim = turned + 2;
      for (const auto direction : {Rope::Direction::forward, Rope::Direction::inverse}) {
        const auto x0 = Tensor::random(type, {1, tokens, heads * dim}, 1, 1, 2);
        Tensor halves = x0.copy(), neighbours = x0.copy();
        const auto half_of = [&](std::int64_t i) {  // where neighbours' element lies among halves
          const std::int64_t c = i % dim;
          return c < turned ? i - c + c / 2 + c % 2 * (turned / 2) : i;
        };
        for (std::int64_t i = 0; i < x0.size(); ++i) neighbours.set(i, x0[half_of(i)]);
        Rope call{.x = halves.view(),
                  .head_dim = dim,
                  .rotary_dim = turned,
                  .first_position = 3,
                  .direction = direction};
        run(device, call);
        call.x = neighbours.view(), call.pairs = RopePairs::neighbours;
        run(device, call);
        for (std::int64_t i = 0; i < x0.size(); ++i) {
          ASSERT_EQ(neighbours[i], halves[half_of(i)]) << i;
        }
        EXPECT_TRUE(neighbours.gaps_intact());
      }
    }
  });
}

/// The frequency of pair i, and what cosines are multiplied by, as the papers and the models that
/// use them define it.
struct Frequency {
  double f, magnitude = 1;
};
Frequency llama3_frequency(double f, const RopeScaling& s) {
  const double context = static_cast<double>(s.original_positions);
  const double wave = 2 * M_PI / f;
  if (wave < context / s.high_frequency) return {f};
  if (wave > context / s.low_frequency) return {f / s.factor};
  const double smooth = (context / wave - s.low_frequency) / (s.high_frequency - s.low_frequency);
  return {(1 - smooth) * f / s.factor + smooth * f};
}
Frequency yarn_frequency(double f, double i, double dim, double theta, const RopeScaling& s) {
  // The pair whose wave turns so often in the original context: theta^(-2 i / R) C = 2 pi turns.
  const auto pair = [&](double turns) {
    return dim / 2 * std::log(static_cast<double>(s.original_positions) / (2 * M_PI * turns)) /
           std::log(theta);
  };
  const double low = std::max(std::floor(pair(s.fast_turns)), 0.0);
  const double high = std::min(std::ceil(pair(s.slow_turns)), dim - 1);
  const double interpolated = i <= low ? 0 : i >= high ? 1 : (i - low) / (high - low);
  const double magnitude = s.magnitude > 0 ? s.magnitude : 0.1 * std::log(s.factor) + 1;
  return {f * (1 - interpolated) + f / s.factor * interpolated, magnitude};
}
Frequency frequency(const Rope& call, std::int64_t i) {
  const RopeScaling& s = call.scaling;
  const auto dim = static_cast<double>(call.turned());
  const double exponent = -2.0 * static_cast<double>(i) / dim;
  const double f = std::pow(call.theta, exponent);
  switch (s.kind) {
    case RopeScalingKind::none: return {f};
    case RopeScalingKind::linear: return {f / s.factor};
    case RopeScalingKind::dynamic: {
      const auto length = static_cast<double>(std::max(s.positions, s.original_positions));
      const double grown =
          s.factor * length / static_cast<double>(s.original_positions) - (s.factor - 1);
      return {std::pow(call.theta * std::pow(grown, dim / (dim - 2)), exponent)};
    }
    case RopeScalingKind::llama3: return llama3_frequency(f, s);
    default: return yarn_frequency(f, static_cast<double>(i), dim, call.theta, s);
  }
}

TEST(Rope, FrequenciesAreThoseOfLongContexts) {
  const std::vector<RopeScaling> scalings = {
      {.kind = RopeScalingKind::linear, .factor = 4},
      {.kind = RopeScalingKind::dynamic, .factor = 2, .original_positions = 64, .positions = 200},
      {.kind = RopeScalingKind::dynamic, .factor = 2, .original_positions = 64, .positions = 10},
      {.kind = RopeScalingKind::llama3, .factor = 8, .original_positions = 8192},
      {.kind = RopeScalingKind::yarn, .factor = 4, .original_positions = 4096},
      {.kind = RopeScalingKind::yarn, .factor = 40, .original_positions = 16, .magnitude = 1.25}};
  for_devices([&](Device& device) {
    for (const RopeScaling& scaling : scalings) {
      const std::int64_t tokens = 50, dim = 64, first = 1000;
      // Pairs (1, 0) show their cosines and sines.
      Tensor x(DType::f32, {1, tokens, dim});
      for (std::int64_t i = 0; i < x.size(); ++i) x.set(i, i % dim < dim / 2 ? 1 : 0);
      const Rope call{.x = x.view(),
                      .head_dim = dim,
                      .first_position = first,
                      .theta = 5e5,
                      .scaling = scaling};
      run(device, call);
      Numbers want;
      for (std::int64_t i = 0; i < x.size(); ++i) {
        const Frequency at = frequency(call, i % (dim / 2));
        const double angle = static_cast<double>(first + i / dim) * at.f;
        want.push_back(at.magnitude * (i % dim < dim / 2 ? std::cos(angle) : std::sin(angle)));
      }
      // Rounded once as f32; angles of up to 1050 are off by 2^-52 of that, and the run's turns.
      expect_within(
          x, want, [&](std::int64_t) { return 1.3 * (0x1p-24 + 1100 * 0x1p-50); },
          enum_word(scaling.kind).data());
    }
  });
}

// Llama 3.1 8B, of heads of 128 columns: numbers worked out by hand from its configuration.
TEST(Rope, FrequenciesOfLlama3AreThoseWorkedOutByHand) {
  const Tensor x(DType::f32, {1, 1, 128});
  const Turns turns = turns_of(
      Rope{.x = x.view(),
           .head_dim = 128,
           .theta = 5e5,
           .scaling = {.kind = RopeScalingKind::llama3, .factor = 8, .original_positions = 8192}});
  EXPECT_EQ(turn_step(turns, 0), 1);  // 1304 turns in 8192 tokens: it stays
  EXPECT_NEAR(turn_step(turns, 28), 0.0032114459947525913, 1e-15);  // the last that stays
  EXPECT_NEAR(turn_step(turns, 30), 0.0013718935677611381, 1e-15);  // in between
  EXPECT_NEAR(turn_step(turns, 63), 3.068925988914511e-07, 1e-18);  // an eighth
}

// Qwen 2.5 with YaRN: theta 1e6, four times 32768 tokens.
TEST(Rope, FrequenciesOfYarnAreThoseWorkedOutByHand) {
  const Tensor x(DType::f32, {1, 1, 128});
  const Turns turns = turns_of(
      Rope{.x = x.view(),
           .head_dim = 128,
           .theta = 1e6,
           .scaling = {.kind = RopeScalingKind::yarn, .factor = 4, .original_positions = 32768}});
  EXPECT_EQ(turns.kept, 23);
  EXPECT_EQ(turns.divided, 40);
  EXPECT_NEAR(turns.magnitude, 1.1386294361119891, 1e-15);  // 0.1 ln 4 + 1
  EXPECT_NEAR(turn_step(turns, 23), 0.006978305848598663, 1e-15);
  EXPECT_NEAR(turn_step(turns, 30), 0.0010643609812470017, 1e-15);
  EXPECT_NEAR(turn_step(turns, 63), 3.102344401879299e-07, 1e-18);
}

TEST(Rope, RefusesFrequenciesThatDoNotFit) {
  const auto device = make_cpu_device({.threads = 1});
  const Tensor x(DType::f32, {1, 3, 16});
  const auto refuses = [&](Rope call) {
    call.x = x.view();
    try {
      run(*device, call);
    } catch (const InternalError&) {
      return true;
    }
    return false;
  };
  using enum RopeScalingKind;
  EXPECT_FALSE(refuses({.head_dim = 8, .rotary_dim = 4}));
  EXPECT_TRUE(refuses({.head_dim = 8, .rotary_dim = 10}));
  EXPECT_TRUE(refuses({.head_dim = 8, .rotary_dim = 3}));
  EXPECT_TRUE(refuses({.head_dim = 8, .scaling = {.kind = linear, .factor = 0.5}}));
  EXPECT_TRUE(refuses({.head_dim = 8, .scaling = {.kind = llama3, .factor = 8}}));
  EXPECT_TRUE(refuses(
      {.head_dim = 8, .scaling = {.kind = llama3, .original_positions = 9, .low_frequency = 5}}));
  EXPECT_TRUE(refuses({.head_dim = 8, .scaling = {.kind = dynamic, .original_positions = 9}}));
  EXPECT_TRUE(refuses(
      {.head_dim = 8, .scaling = {.kind = yarn, .original_positions = 9, .fast_turns = 0.5}}));
}

}  // namespace
}  // namespace tessera::kernels::test
