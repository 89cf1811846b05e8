// Caches by a table: of what is there, each sample of a call gets what it gets alone; what is not
// there, other pages and rows behind a sample's tokens, is NaN, and nobody reads it.
#include "tests/unit/kernels/attention_reference.hpp"

namespace tessera::kernels::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// A sample, and which of the sequences that a test has it goes on with.
struct InSlot {
  std::int32_t slot = 0, before = 0, count = 0, tokens = 0;
  CachedSample sample() const { return {before, count, tokens}; }
};

Tensor table_of(const std::vector<InSlot>& samples) {
  Tensor table(DType::i32, {static_cast<std::int64_t>(samples.size()), kCachedColumns});
  for (std::size_t b = 0; b < samples.size(); ++b) {
    const CachedSample sample = samples[b].sample();
    std::memcpy(table.view().data + b * sizeof(CachedSample), &sample, sizeof(CachedSample));
  }
  return table;
}

/// How the rows of slots lie in a cache: a slot is a page, or it has several, which lie among those
/// of others, the last of them first.
struct Paging {
  std::int64_t slots, room;
  bool several = false;

  std::int64_t each() const { return several ? ceil_div(room, kPageTokens) : 1; }
  std::int64_t tokens() const { return several ? kPageTokens : room; }
  std::int64_t all() const { return slots * each(); }
  std::int64_t page(std::int64_t slot, std::int64_t i) const {
    return (each() - 1 - i) * slots + slot;
  }
  Tensor table(const std::vector<InSlot>& samples) const {
    Tensor pages(DType::i32, {static_cast<std::int64_t>(samples.size()), each()});
    for (std::int64_t i = 0; i < pages.size(); ++i)
      pages.set(i, static_cast<double>(
                       page(samples[static_cast<std::size_t>(i / each())].slot, i % each())));
    return pages;
  }
  /// (slots, room, C) as the cache has it; what is no slot's is `other`.
  Tensor cache(const Tensor& of_slots, std::int64_t gap, double other) const {
    const std::int64_t columns = of_slots.view().cols();
    Tensor pages(of_slots.view().type, {all(), tokens(), columns}, gap);
    for (std::int64_t i = 0; i < pages.size(); ++i) pages.set(i, other);
    for (std::int64_t i = 0; i < of_slots.size(); ++i) {
      const std::int64_t slot = i / columns / room, t = i / columns % room;
      pages.set((page(slot, t / tokens()) * tokens() + t % tokens()) * columns + i % columns,
                of_slots[i]);
    }
    return pages;
  }
};

/// Rows [first, first + count) of one sample of (B, T, C), and of these the first columns.
Tensor rows_of(const Tensor& x, std::int64_t sample, std::int64_t first, std::int64_t count,
               std::int64_t columns) {
  const std::int64_t tokens = x.view().extent(1), all = x.view().cols();
  Tensor rows(x.view().type, {1, count, columns});
  for (std::int64_t i = 0; i < rows.size(); ++i)
    rows.set(i, x[(sample * tokens + first + i / columns) * all + i % columns]);
  return rows;
}
/// All columns.
Tensor rows_of(const Tensor& x, std::int64_t sample, std::int64_t first, std::int64_t count) {
  return rows_of(x, sample, first, count, x.view().cols());
}

/// Those of a tensor of NaN become random in the first `count` rows of one sample.
void fill_rows(Tensor& x, std::int64_t sample, std::int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  const std::int64_t columns = x.view().cols(), begin = sample * x.view().extent(1) * columns;
  for (std::int64_t i = 0; i < count * columns; ++i) x.set(begin + i, normal(generator));
}
Tensor nan_tensor(DType type, std::vector<std::int64_t> shape, std::int64_t gap = 0) {
  Tensor x(type, std::move(shape), gap);
  for (std::int64_t i = 0; i < x.size(); ++i) x.set(i, kNan);
  return x;
}
/// (B, T, C) whose padding is NaN.
Tensor padded_samples(DType type, const std::vector<InSlot>& samples, std::int64_t tokens,
                      std::int64_t columns, std::int64_t gap = 0) {
  Tensor x = nan_tensor(type, {static_cast<std::int64_t>(samples.size()), tokens, columns}, gap);
  for (std::size_t b = 0; b < samples.size(); ++b)
    fill_rows(x, static_cast<std::int64_t>(b), samples[b].count, static_cast<unsigned>(b));
  return x;
}

// --- Attention

struct AttentionCase {
  std::int64_t tokens, slots, room;
  AttentionShape shape;
  std::vector<InSlot> samples;
  std::int64_t gap = 0;
  bool latents = false;  // values are the first columns of the keys

  Paging paging(bool several) const { return {slots, room, several}; }
};

const std::vector<AttentionCase> kAttention = {
    // The next token of each sequence.
    {1,
     5,
     330,
     {.heads = 4, .kv_heads = 2, .head_dim = 64},
     {{3, 0, 1}, {0, 299, 1}, {4, 64, 1}, {1, 63, 0}}},
    {1,
     3,
     150,
     {.heads = 5, .kv_heads = 2, .head_dim = 7, .window = 70, .soft_cap = 2, .group = 4, .skip = 1},
     {{2, 149, 1}, {0, 20, 1}},
     1},
    {1,
     2,
     300,
     {.heads = 3, .kv_heads = 1, .head_dim = 40, .value_dim = 32},
     {{1, 270, 1}, {0, 5, 1}},
     8,
     true},
    // Prompts, as long as the call or shorter, behind tokens or not.
    {70,
     6,
     310,
     {.heads = 4, .kv_heads = 2, .head_dim = 20},
     {{2, 0, 70}, {0, 1, 1}, {5, 230, 69}, {1, 7, 0}, {3, 240, 65}},
     4},
    {130, 3, 130, {.heads = 2, .kv_heads = 1, .head_dim = 136}, {{1, 0, 130}, {2, 0, 3}}, 8},
    {300, 2, 320, {.heads = 1, .kv_heads = 1, .head_dim = 8}, {{1, 20, 290}, {0, 300, 5}}},
    {9,
     4,
     280,
     {.heads = 2, .kv_heads = 2, .head_dim = 33, .window = 70, .soft_cap = 1.5F},
     {{3, 262, 9}, {0, 60, 1}, {1, 0, 8}},
     3},
    {9,
     3,
     200,
     {.heads = 2,
      .kv_heads = 1,
      .head_dim = 16,
      .mask = AttentionMask::bidirectional,
      .window = 50},
     {{2, 130, 9}, {1, 0, 5}}},
    {6,
     3,
     140,
     {.heads = 2, .kv_heads = 1, .head_dim = 16, .mask = AttentionMask::bidirectional},
     {{0, 130, 6}, {2, 10, 1}}},
    {6,
     4,
     280,
     {.heads = 4, .kv_heads = 1, .head_dim = 72, .value_dim = 64},
     {{3, 260, 6}, {1, 70, 3}, {0, 0, 2}},
     24,
     true},
};

struct Caches {
  AttentionCase c;
  Tensor q, k, v, table;

  Caches(const AttentionCase& of, DType type)
      : c(of),
        q(padded_samples(type, c.samples, c.tokens, c.shape.heads * c.shape.head_dim, c.gap)),
        k(nan_tensor(type, {c.slots, c.room, c.shape.kv_heads * c.shape.head_dim}, c.gap)),
        v(nan_tensor(type, {c.slots, c.room, c.shape.kv_heads * c.shape.values()}, c.gap)),
        table(table_of(c.samples)) {
    c.shape.scale = 1 / std::sqrt(static_cast<float>(c.shape.head_dim));
    for (const InSlot& s : c.samples) {
      fill_rows(k, s.slot, s.before + s.count, static_cast<unsigned>(100 + s.slot));
      fill_rows(v, s.slot, s.before + s.count, static_cast<unsigned>(200 + s.slot));
    }
  }
  /// With a slot in one page, or in several.
  Tensor run_on(Device& device, bool several) const {
    const Paging paging = c.paging(several);
    const Tensor pages = paging.table(c.samples), keys = paging.cache(k, c.gap, kNan),
                 of_values = paging.cache(v, c.gap, kNan);
    Tensor out(q.view().type, {q.view().extent(0), c.tokens, c.shape.heads * c.shape.values()},
               c.gap);
    run(device,
        Attention{.q = q.view(),
                  .k = keys.view(),
                  .v = c.latents ? keys.view().col_range(0, c.shape.values()) : of_values.view(),
                  .out = out.view(),
                  .cached = table.view(),
                  .pages = pages.view(),
                  .shape = c.shape});
    EXPECT_TRUE(out.gaps_intact());
    return out;
  }
  Tensor own_keys(const InSlot& s) const { return rows_of(k, s.slot, 0, s.before + s.count); }
  Tensor own_values(const InSlot& s) const {
    return rows_of(c.latents ? k : v, s.slot, 0, s.before + s.count, v.view().cols());
  }
};

/// What a sample gets without a cache. A CPU has a loop of its own for calls of one query, so where
/// the call with a cache has several, another one is put before a single one.
Tensor alone(Device& device, const Caches& x, std::int64_t b) {
  const InSlot& s = x.c.samples[static_cast<std::size_t>(b)];
  const bool another = x.c.tokens > 1 && s.count == 1 && s.before > 0;
  const std::int64_t first = another ? 1 : 0, queries = first + s.count;
  const Tensor own = rows_of(x.q, b, 0, s.count), k = x.own_keys(s), v = x.own_values(s);
  Tensor q(own.view().type, {1, queries, own.view().cols()});
  for (std::int64_t i = 0; i < own.size(); ++i) q.set(first * own.view().cols() + i, own[i]);
  const Tensor out(own.view().type, {1, queries, x.c.shape.heads * x.c.shape.values()});
  run(device,
      Attention{
          .q = q.view(), .k = k.view(), .v = v.view(), .out = out.view(), .shape = x.c.shape});
  return rows_of(out, 0, first, s.count);
}

void expect_bits_of_each_sample_alone(Device& device, DType type) {
  for (std::size_t i = 0; i < kAttention.size(); ++i) {
    const Caches x(kAttention[i], type);
    const Tensor out = x.run_on(device, false), of_pages = x.run_on(device, true);
    for (std::int64_t b = 0; b < out.view().extent(0); ++b) {
      const std::int64_t count = x.c.samples[static_cast<std::size_t>(b)].count;
      if (count == 0) continue;
      const Tensor want = alone(device, x, b);
      EXPECT_TRUE(rows_of(out, b, 0, count).same_bits(want) &&
                  rows_of(of_pages, b, 0, count).same_bits(want))
          << to_string(type) << ", case " << i << ", sample " << b;
    }
  }
}
TEST(CachedAttention, HasTheBitsOfEachSampleAlone) {
  for_cpu_devices([](Device& device) {
    for (const DType type : {DType::f32, DType::bf16})
      expect_bits_of_each_sample_alone(device, type);
  });
  for_matrix_device(expect_bits_of_each_sample_alone);
}

/// A sample alone in double: values have zeros in the columns that only keys have.
attention::Reference reference_of(const Caches& x, std::int64_t b) {
  const InSlot& s = x.c.samples[static_cast<std::size_t>(b)];
  const AttentionShape& shape = x.c.shape;
  const std::int64_t keys = s.before + s.count, dim = shape.head_dim, values = shape.values();
  const Tensor v = x.own_values(s);
  Numbers wide(static_cast<std::size_t>(keys * shape.kv_heads * dim));
  for (std::int64_t i = 0; i < v.size(); ++i)
    wide[static_cast<std::size_t>(i / values * dim + i % values)] = v[i];
  return {.c = {.samples = 1,
                .queries = s.count,
                .keys = keys,
                .heads = shape.heads,
                .kv_heads = shape.kv_heads,
                .dim = dim,
                .gap = 0},
          .shape = shape,
          .dropout = {},
          .q = rows_of(x.q, b, 0, s.count).numbers(),
          .k = x.own_keys(s).numbers(),
          .v = wide,
          .document = {}};
}

TEST(CachedAttention, AgreesWithDoubleSoftmax) {
  attention::for_attention_devices(
      [](Device& device, DType type, const attention::ScoreRounding& rounding) {
        if (type == DType::f16 && gpu() != Gpu::real) return;  // which has the loops of bf16
        for (const AttentionCase& c : kAttention) {
          const Caches x(c, type);
          const Tensor out = x.run_on(device, true);
          for (std::int64_t b = 0; b < out.view().extent(0); ++b) {
            const InSlot& s = c.samples[static_cast<std::size_t>(b)];
            if (s.count == 0) continue;
            const attention::Outputs want = attention::outputs_of(reference_of(x, b), rounding);
            const std::int64_t values = c.shape.values();
            const Tensor got = rows_of(out, b, 0, s.count);
            const auto at = [&](std::int64_t i) {
              return static_cast<std::size_t>(i / values * c.shape.head_dim + i % values);
            };
            Numbers numbers;
            for (std::int64_t i = 0; i < got.size(); ++i) numbers.push_back(want.out[at(i)]);
            expect_within(
                got, numbers,
                [&](std::int64_t i) {
                  const double error = want.out_error(at(i));
                  return error + write_error(type, std::abs(want.out[at(i)]) + error);
                },
                "out");
          }
        }
      });
}

// --- Rope

const std::vector<InSlot> kTurned = {{0, 0, 40}, {1, 31, 40}, {2, 1000, 1}, {3, 64, 0}, {4, 62, 7}};

/// What a sample's tokens become without a cache.
Tensor turned_alone(Device& device, Rope call, const Tensor& x, std::int64_t b) {
  const InSlot& s = kTurned[static_cast<std::size_t>(b)];
  Tensor own = rows_of(x, b, 0, s.count);
  call.x = own.view(), call.cached = {}, call.first_position = s.before;
  call.scaling.positions = s.before + s.count;
  run(device, call);
  return own;
}

/// Theta of dynamic frequencies is computed by a real GPU for a cache, by the host without one, and
/// either may err in the last place of a double; all else is the same to the bit.
void expect_same_turns(const Tensor& got, const Tensor& want, const Rope& call,
                       const std::string& what) {
  if (gpu() != Gpu::real || call.scaling.kind != RopeScalingKind::dynamic) {
    EXPECT_TRUE(got.same_bits(want)) << what;
    return;
  }
  const Numbers numbers = want.numbers();
  const double bound = 4 * (roundoff(got.view().type) + 0x1p-23) * largest(numbers);
  expect_within(
      got, numbers, [&](std::int64_t) { return bound; }, what.c_str());
}

void expect_turns_of_each_sample(Device& device, DType type, Rope call) {
  const auto samples = static_cast<std::int64_t>(kTurned.size());
  const Tensor before = padded_samples(type, kTurned, 40, 3 * call.head_dim, 2);
  const Tensor x = before.copy(), table = table_of(kTurned);
  call.x = x.view(), call.cached = table.view();
  run(device, call);
  EXPECT_TRUE(x.gaps_intact());
  for (std::int64_t b = 0; b < samples; ++b) {
    const std::int64_t count = kTurned[static_cast<std::size_t>(b)].count;
    if (count == 0) continue;
    expect_same_turns(rows_of(x, b, 0, count), turned_alone(device, call, before, b), call,
                      fmt::format("{}, sample {}", enum_word(call.scaling.kind), b));
  }
}

TEST(CachedRope, TurnsEachSampleByItsOwnPositions) {
  const std::vector<RopeScaling> scalings = {
      {},
      {.kind = RopeScalingKind::linear, .factor = 4},
      {.kind = RopeScalingKind::dynamic, .factor = 2, .original_positions = 64, .positions = 1},
      {.kind = RopeScalingKind::llama3, .factor = 8, .original_positions = 64},
      {.kind = RopeScalingKind::yarn, .factor = 4, .original_positions = 64}};
  for_devices_and_types([&](Device& device, DType type) {
    for (const RopeScaling& scaling : scalings) {
      expect_turns_of_each_sample(device, type, {.head_dim = 16, .scaling = scaling});
      expect_turns_of_each_sample(device, type,
                                  {.head_dim = 10,
                                   .rotary_dim = 6,
                                   .first_column = 3,
                                   .pairs = RopePairs::neighbours,
                                   .scaling = scaling,
                                   .direction = Rope::Direction::inverse});
    }
  });
}

// --- Embedding

constexpr std::int64_t kTokens = 5, kPositions = 12;
const std::vector<InSlot> kEmbedded = {{0, 0, 5}, {1, 7, 5}, {2, 11, 1}, {3, 4, 0}, {4, 9, 3}};

/// Positions [0, 12), with rows of NaN behind them.
Tensor some_positions(DType type, std::int64_t columns) {
  Tensor table = nan_tensor(type, {1, kPositions + kTokens, columns});
  fill_rows(table, 0, kPositions, 7);
  return table;
}

/// Calls one_token(b, t, position) for every token; it says what this one is with that as its first
/// position. Padding has the position of the last token.
void expect_positions_of_each_sample(
    const Tensor& out,
    const std::function<Tensor(std::int64_t, std::int64_t, std::int64_t)>& one_token) {
  for (std::size_t i = 0; i < kEmbedded.size(); ++i) {
    const auto b = static_cast<std::int64_t>(i);
    const InSlot& s = kEmbedded[i];
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const std::int64_t position = s.before + std::min<std::int64_t>(t, std::max(s.count - 1, 0));
      EXPECT_TRUE(rows_of(out, b, t, 1).same_bits(one_token(b, t, position)))
          << "token " << t << " of sample " << b;
    }
  }
  EXPECT_TRUE(out.gaps_intact());
}

TEST(CachedEmbed, AddsPositionsOfEachSample) {
  for_devices_and_types([](Device& device, DType type) {
    for (const std::int64_t columns : {1, 37, 64}) {
      const auto samples = static_cast<std::int64_t>(kEmbedded.size());
      const auto tokens_table = Tensor::random(type, {7, columns}, 1, 1, 2);
      const Tensor rows = some_positions(type, columns), table = table_of(kEmbedded);
      const View positions(rows.view().data, type, {kPositions, columns});
      Tensor tokens(DType::i32, {samples, kTokens});
      for (std::int64_t i = 0; i < tokens.size(); ++i) tokens.set(i, i * i % 7);
      const Tensor out(type, {samples, kTokens, columns}, 3);
      const Embed call{.tokens = tokens.view(),
                       .token_table = tokens_table.view(),
                       .position_table = positions,
                       .cached = table.view(),
                       .out = out.view()};
      run(device, call);
      expect_positions_of_each_sample(out,
                                      [&](std::int64_t b, std::int64_t t, std::int64_t position) {
                                        const Tensor own(type, {1, 1, columns});
                                        Tensor token(DType::i32, {1, 1});
                                        token.set(0, tokens[b * kTokens + t]);
                                        Embed one = call;
                                        one.tokens = token.view(), one.out = own.view();
                                        one.cached = {}, one.first_position = position;
                                        run(device, one);
                                        return own.copy();
                                      });
    }
  });
}

TEST(CachedAddPositions, AddsThoseOfEachSample) {
  for_devices_and_types([](Device& device, DType type) {
    for (const std::int64_t columns : {1, 37, 64}) {
      const auto samples = static_cast<std::int64_t>(kEmbedded.size());
      const auto x = Tensor::random(DType::f32, {samples, kTokens, columns}, 1);
      const Tensor rows = some_positions(type, columns), table = table_of(kEmbedded);
      const Tensor out(type, {samples, kTokens, columns}, 3);
      const AddPositions call{.x = x.view(),
                              .position_table = View(rows.view().data, type, {kPositions, columns}),
                              .cached = table.view(),
                              .out = out.view()};
      run(device, call);
      expect_positions_of_each_sample(
          out, [&](std::int64_t b, std::int64_t t, std::int64_t position) {
            const Tensor own(type, {1, 1, columns}), token = rows_of(x, b, t, 1);
            AddPositions one = call;
            one.x = token.view(), one.out = own.view();
            one.cached = {}, one.first_position = position;
            run(device, one);
            return own.copy();
          });
    }
  });
}

// --- Remember

TEST(Remember, WritesTheTokensThatThereAre) {
  const std::vector<InSlot> samples = {{2, 0, 9}, {0, 11, 4}, {3, 60, 9}, {4, 129, 1}, {1, 6, 0}};
  constexpr std::int64_t kLongest = 9;
  for_devices_and_types([&](Device& device, DType type) {
    for (const auto& [columns, gap] : {std::pair{1, 0}, {37, 3}, {64, 0}, {72, 8}}) {
      for (const std::int64_t tokens : {kLongest, std::int64_t{1}}) {
        for (const bool several : {false, true}) {
          const Paging paging{.slots = 5, .room = 130, .several = several};
          std::vector<InSlot> own = samples;
          for (InSlot& s : own) s.count = std::min<std::int32_t>(s.count, tokens);
          const Tensor x = padded_samples(type, own, tokens, columns, gap), table = table_of(own),
                       pages = paging.table(own);
          auto slots = Tensor::random(type, {paging.slots, paging.room, columns}, 50, 1, gap);
          const Tensor cache = paging.cache(slots, gap, 0);
          run(device, Remember{.x = x.view(),
                               .cached = table.view(),
                               .pages = pages.view(),
                               .cache = cache.view()});
          for (std::size_t b = 0; b < own.size(); ++b) {
            const std::int64_t from = static_cast<std::int64_t>(b) * tokens * columns,
                               to = (own[b].slot * paging.room + own[b].before) * columns;
            for (std::int64_t i = 0; i < own[b].count * columns; ++i)
              slots.set(to + i, x[from + i]);
          }
          EXPECT_TRUE(cache.same_bits(paging.cache(slots, gap, 0)))
              << columns << " columns + " << gap;
          EXPECT_TRUE(cache.gaps_intact());
        }
      }
    }
  });
}

// --- Tables that say what cannot be

constexpr std::int64_t kBadTokens = 3, kBadSlots = 2, kBadRoom = 8;

/// Of two samples, the first of which has page 0.
Tensor bad_pages(std::int32_t second) {
  Tensor pages(DType::i32, {2, 1});
  pages.set(1, second);
  return pages;
}

bool refuses(const std::function<void(Device&)>& call) {
  const auto device = make_cpu_device({.threads = 1});
  try {
    call(*device);
  } catch (const InternalError&) {
    return true;
  }
  return false;
}
bool remember_refuses(const View& table, const View& pages) {
  const Tensor x(DType::f32, {2, kBadTokens, 4}), cache(DType::f32, {kBadSlots, kBadRoom, 4});
  return refuses([&](Device& device) {
    run(device, Remember{.x = x.view(), .cached = table, .pages = pages, .cache = cache.view()});
  });
}
bool attention_refuses(const View& table, const View& pages,
                       const std::function<void(Attention&)>& change = {}) {
  const Tensor q(DType::f32, {2, kBadTokens, 4}), k(DType::f32, {kBadSlots, kBadRoom, 4}),
      out = q.copy();
  Attention call{.q = q.view(),
                 .k = k.view(),
                 .v = k.view(),
                 .out = out.view(),
                 .cached = table,
                 .pages = pages,
                 .shape = {.heads = 1, .kv_heads = 1, .head_dim = 4, .scale = 1}};
  if (change) change(call);
  return refuses([&](Device& device) { run(device, call); });
}
bool rope_refuses(const View& table, const std::function<void(Rope&)>& change = {}) {
  const Tensor x(DType::f32, {2, kBadTokens, 4});
  Rope call{.x = x.view(), .cached = table, .head_dim = 4};
  if (change) change(call);
  return refuses([&](Device& device) { run(device, call); });
}
/// Both of them, or none; there are as many positions as tokens in a slot.
bool embedding_refuses(const View& table, std::int64_t first_position = 0) {
  const Tensor tokens(DType::i32, {2, kBadTokens}), rows(DType::f32, {kBadRoom, 4}),
      x(DType::f32, {2, kBadTokens, 4}), out = x.copy();
  const bool embed = refuses([&](Device& device) {
    run(device, Embed{.tokens = tokens.view(),
                      .token_table = rows.view(),
                      .position_table = rows.view(),
                      .cached = table,
                      .out = out.view(),
                      .first_position = first_position});
  });
  const bool add = refuses([&](Device& device) {
    run(device, AddPositions{.x = x.view(),
                             .position_table = rows.view(),
                             .cached = table,
                             .out = out.view(),
                             .first_position = first_position});
  });
  EXPECT_EQ(embed, add);
  return embed;
}

// What a pass costs is told from these bytes: of five pages two samples have two each, one row of
// each sample is filled.
TEST(CachedSamples, MoveTheBytesOfTheirPages) {
  const Tensor table = table_of({{.before = 7, .count = 1}, {.count = 1}}),
               pages(DType::i32, {2, 2}), q(DType::bf16, {2, 1, 32}), x(DType::bf16, {2, 1, 16}),
               out(DType::bf16, {2, 1, 32}), cache(DType::bf16, {5, kPageTokens, 16});
  EXPECT_EQ(
      bytes_of(Remember{
          .x = x.view(), .cached = table.view(), .pages = pages.view(), .cache = cache.view()}),
      2.0 * 2 * 16 * 2);
  EXPECT_EQ(bytes_of(Attention{.q = q.view(),
                               .k = cache.view(),
                               .v = cache.view(),
                               .out = out.view(),
                               .cached = table.view(),
                               .pages = pages.view(),
                               .shape = {.heads = 4, .kv_heads = 2, .head_dim = 8}}),
            2.0 * (2 * 2 * kPageTokens * 16 * 2) + 2.0 * (2 * 32 * 2) + 2.0 * sizeof(CachedSample) +
                2.0 * 2 * sizeof(std::int32_t));
}

TEST(CachedSamples, AreRefusedWhereThereIsNoRoom) {
  struct Row {
    InSlot sample;                         // whose slot is its page
    bool in_cache, in_positions, in_call;  // whether it is right for one
  };
  const std::vector<Row> rows = {
      {{1, 5, 3}, true, true, true},           {{0, 0, 0}, true, true, true},
      {{kBadSlots, 0, 0}, true, true, true},  // nobody looks at the page
      {{-1, 0, 1}, false, true, true},         {{kBadSlots, 0, 1}, false, true, true},
      {{1, 6, 3}, false, false, true},         {{1, 0, 4}, false, false, false},
      {{1, 0, -1}, false, false, false},       {{1, -1, 2}, false, false, false},
      {{1, 0x7fffffff, 2}, false, false, true}};
  for (const Row& row : rows) {
    const Tensor table = table_of({{0, 0, 1}, row.sample}), pages = bad_pages(row.sample.slot);
    const std::string what =
        fmt::format("{} after {} in {}", row.sample.count, row.sample.before, row.sample.slot);
    EXPECT_EQ(remember_refuses(table.view(), pages.view()), !row.in_cache) << what;
    EXPECT_EQ(attention_refuses(table.view(), pages.view()), !row.in_cache) << what;
    EXPECT_EQ(embedding_refuses(table.view()), !row.in_positions) << what;
    EXPECT_EQ(rope_refuses(table.view()), !row.in_call) << what;
  }
}

TEST(CachedSamples, AreOneForEachSampleAndGoWithoutWhatACacheHasNot) {
  const Tensor table = table_of({{0, 0, 1}, {1, 0, 1}}), longer = table_of({{}, {}, {}}),
               pages = bad_pages(1), of_three(DType::i32, {3, 1}), of_eight(DType::i32, {2, 2});
  EXPECT_TRUE(remember_refuses(longer.view(), pages.view()));
  EXPECT_TRUE(remember_refuses({}, pages.view()));
  EXPECT_TRUE(remember_refuses(table.view(), {}));
  EXPECT_TRUE(remember_refuses(table.view(), of_three.view()));
  EXPECT_TRUE(remember_refuses(table.view(), of_eight.view())) << "several pages of 8 tokens";
  EXPECT_TRUE(attention_refuses(longer.view(), pages.view()));
  EXPECT_TRUE(attention_refuses(table.view(), {}));
  EXPECT_TRUE(attention_refuses(table.view(), of_three.view()));
  EXPECT_TRUE(attention_refuses(table.view(), of_eight.view())) << "several pages of 8 tokens";
  EXPECT_TRUE(rope_refuses(longer.view()));
  EXPECT_TRUE(embedding_refuses(longer.view()));
  EXPECT_TRUE(embedding_refuses(table.view(), 1));
  EXPECT_TRUE(rope_refuses(table.view(), [](Rope& a) { a.first_position = 1; }));
  EXPECT_TRUE(rope_refuses(table.view(), [](Rope& a) { a.longest = 9; }));

  const Tensor samples(DType::i64, {2}), lse(DType::f32, {2, 1, kBadTokens}),
      documents(DType::i32, {kBadSlots, kBadRoom, 2});
  using Change = std::function<void(Attention&)>;
  for (const Change& change : std::initializer_list<Change>{
           [&](Attention& a) { a.lse = lse.view(); },
           [&](Attention& a) { a.documents = documents.view(); },
           [&](Attention& a) { a.dropout = {.p = 0.1F, .samples = samples.view()}; },
           [](Attention& a) { a.first = 0; }, [](Attention& a) { a.first_key = 1; },
           [](Attention& a) { a.tokens = kBadRoom; }}) {
    EXPECT_TRUE(attention_refuses(table.view(), pages.view(), change));
  }
  EXPECT_FALSE(attention_refuses(table.view(), pages.view()));
}

}  // namespace
}  // namespace tessera::kernels::test
