// Attention to some keys of a sequence at a time, as they go round among ranks: what queries get of
// each part, merged, is what they get of all, and so are gradients, added up.
#include <cmath>
#include <limits>
#include <utility>

#include "tests/unit/kernels/attention_reference.hpp"

namespace tessera::kernels::test::attention {
namespace {

/// A case and the tokens of each part of its keys.
struct Parted {
  Case c;
  std::vector<Range> parts;
};

std::vector<Range> equal_parts(std::int64_t tokens, std::int64_t each) {
  std::vector<Range> parts;
  for (std::int64_t t = 0; t < tokens; t += each) parts.push_back({t, std::min(t + each, tokens)});
  return parts;
}

Case some_queries(std::int64_t first, std::int64_t queries, std::int64_t tokens,
                  AttentionMask mask) {
  return {.samples = 2,
          .queries = queries,
          .keys = tokens,
          .heads = 2,
          .kv_heads = 1,
          .dim = 16,
          .gap = 0,
          .mask = mask,
          .first = first};
}

std::vector<Parted> parted_cases() {
  std::vector<Parted> all;
  for (const auto mask : {AttentionMask::causal, AttentionMask::bidirectional}) {
    // Parts before the queries, with them, and behind; smaller and larger than tiles.
    all.push_back({some_queries(64, 64, 256, mask), equal_parts(256, 64)});
    all.push_back({some_queries(30, 45, 130, mask), equal_parts(130, 15)});
    all.push_back({some_queries(0, 200, 200, mask), equal_parts(200, 77)});
    Case window = some_queries(96, 48, 192, mask);
    window.window = 40;  // nothing of some parts
    all.push_back({window, equal_parts(192, 24)});
    Case together = some_queries(40, 50, 140, mask);
    together.lengths = {20, 45, 5, 70};
    together.window = 33, together.soft_cap = 2, together.dropout = 0.2F, together.gap = 4;
    together.heads = 3, together.kv_heads = 2, together.group = 2, together.skip = 1;
    together.dim = 20;
    all.push_back({together, {{0, 35}, {35, 70}, {70, 75}, {75, 140}}});
  }
  Case wide = some_queries(16, 32, 80, AttentionMask::causal);
  wide.dim = 136, wide.gap = 8;
  all.push_back({wide, equal_parts(80, 16)});
  // As cuDNN takes them: of keys before, and up to their own.
  Case cudnn = some_queries(128, 128, 256, AttentionMask::causal);
  cudnn.heads = 4, cudnn.kv_heads = 2, cudnn.dim = 64;
  all.push_back({cudnn, equal_parts(256, 128)});
  return all;
}

/// Runs f(device, type, rounding, case, parts) for all.
template <typename F>
void for_parted_cases(F&& f) {
  const std::vector<Parted> cases = parted_cases();
  for_attention_devices([&](Device& device, DType type, const ScoreRounding& rounding) {
    for (const Parted& p : cases) {
      SCOPED_TRACE(fmt::format("{} queries from token {} of {} in {} parts, {}", p.c.queries,
                               p.c.first, p.c.keys, p.parts.size(), enum_word(p.c.mask)));
      f(device, type, rounding, p.c, p.parts);
    }
  });
}

TEST(AttentionParts, MergedAreWhatAllKeysGive) {
  for_parted_cases([](Device& device, DType type, const ScoreRounding& rounding, const Case& c,
                      const std::vector<Range>& parts) {
    const Inputs in = make_inputs(c, type);
    Tensor part(type, {c.samples, c.queries, c.heads * c.dim}, c.gap),
        out(DType::f32, {c.samples, c.queries, c.heads * c.dim}, c.gap);
    Tensor part_lse(DType::f32, {c.samples, c.heads, c.queries}), lse = part_lse.copy();
    for (std::int64_t i = 0; i < lse.size(); ++i)
      lse.set(i, -std::numeric_limits<double>::infinity());
    int unseen = 0;
    for (const Range keys : parts) {
      SCOPED_TRACE(fmt::format("keys {} to {}", keys.begin, keys.end));
      const Tensor k = positions_of(in.k, keys.begin, keys.count()),
                   v = positions_of(in.v, keys.begin, keys.count());
      Attention call = call_of(in, part, part_lse);
      call.k = k.view(), call.v = v.view();
      call.first_key = keys.begin, call.tokens = c.keys;
      run(device, call);
      for (std::int64_t i = 0; i < part_lse.size(); ++i) {
        if (std::isfinite(part_lse[i])) continue;
        ++unseen;
        ASSERT_EQ(part_lse[i], -std::numeric_limits<double>::infinity()) << i;
      }
      run(device, MergeAttention{.x = part.view(),
                                 .x_lse = part_lse.view(),
                                 .out = out.view(),
                                 .lse = lse.view(),
                                 .heads = c.heads});
    }
    if (c.mask == AttentionMask::causal && c.first > 0 && c.window > 0) {
      EXPECT_GT(unseen, 0);
    }
    const Outputs want = outputs_of(in.reference, rounding);
    // Each merge rounds the sum of exponentials' log, by which weights are off, and weights and
    // outputs a few times.
    const auto merges = static_cast<double>(parts.size());
    const double u = 0x1p-24;
    double weights = 0;
    for (std::size_t i = 0; i < want.lse.size(); ++i)
      weights = std::max(weights, merges * (2 * want.lse_error(i) + 12 * u));
    expect_within(
        out, want.out,
        [&](std::int64_t i) {
          const auto j = static_cast<std::size_t>(i);
          const double error = want.out_error(j) + weights * want.absolute[j];
          return error + merges * write_error(type, want.absolute[j] + error);
        },
        "out");
    expect_within(
        lse, want.lse,
        [&](std::int64_t i) {
          return merges * (want.lse_error(static_cast<std::size_t>(i)) + 4 * u);
        },
        "lse");
  });
}

TEST(AttentionParts, GradientsAddUpToThoseOfAllKeys) {
  for_parted_cases([](Device& device, DType type, const ScoreRounding& rounding, const Case& c,
                      const std::vector<Range>& parts) {
    const Inputs in = make_inputs(c, type);
    Tensor out(type, {c.samples, c.queries, c.heads * c.dim}, c.gap);
    const Tensor lse(DType::f32, {c.samples, c.heads, c.queries});
    run(device, call_of(in, out, lse));
    const auto d_out = Tensor::random(type, {c.samples, c.queries, c.heads * c.dim}, 9, 1, c.gap);
    const Gradients want = backward(in.reference, d_out.numbers(), type, rounding);
    Tensor d_q_of_all(DType::f32, {c.samples, c.queries, c.heads * c.dim}, c.gap);
    Numbers rounded(want.q.size());  // what parts of d_q lose when they are written
    for (const Range keys : parts) {
      SCOPED_TRACE(fmt::format("keys {} to {}", keys.begin, keys.end));
      const Tensor k = positions_of(in.k, keys.begin, keys.count()),
                   v = positions_of(in.v, keys.begin, keys.count());
      Tensor d_q(type, {c.samples, c.queries, c.heads * c.dim}, c.gap);
      const Tensor d_k(DType::f32, {c.samples, keys.count(), c.kv_heads * c.dim}), d_v = d_k.copy();
      AttentionBackward call = backward_of(in, out, lse, d_out, d_q, d_k, d_v);
      call.k = k.view(), call.v = v.view();
      call.first_key = keys.begin, call.tokens = c.keys;
      run(device, call);
      run(device, Convert{.x = d_q.view(), .out = d_q_of_all.view(), .write = Write::add});
      for (std::int64_t i = 0; i < d_q.size(); ++i) {
        const double value = std::abs(d_q[i]);
        rounded[static_cast<std::size_t>(i)] += write_error(type, 1.01 * value) + 0x1p-23 * value;
      }
      const auto of_part = [&](const Numbers& all) {
        Numbers own;
        const std::int64_t columns = c.kv_heads * c.dim;
        for (std::int64_t b = 0; b < c.samples; ++b) {
          const auto begin = all.begin() + (b * c.keys + keys.begin) * columns;
          own.insert(own.end(), begin, begin + keys.count() * columns);
        }
        return own;
      };
      const auto expect = [&](const Tensor& got, const Numbers& all, const Numbers& bounds,
                              const char* name) {
        const Numbers value = of_part(all), bound = of_part(bounds);
        expect_within(
            got, value,
            [&](std::int64_t i) {
              const auto j = static_cast<std::size_t>(i);
              return bound[j] + write_error(DType::f32, std::abs(value[j]) + bound[j]);
            },
            name);
      };
      expect(d_k, want.k, want.k_bound, "d_k");
      expect(d_v, want.v, want.v_bound, "d_v");
    }
    expect_within(
        d_q_of_all, want.q,
        [&](std::int64_t i) {
          const auto j = static_cast<std::size_t>(i);
          return want.q_bound[j] + rounded[j] +
                 static_cast<double>(parts.size()) * 0x1p-24 * std::abs(want.q[j]);
        },
        "d_q");
  });
}

TEST(AttentionParts, AQueryThatSeesNoKeyGetsAndGivesNothing) {
  for_devices_of_products([](Device& device, DType type) {
    Case c = some_queries(0, 20, 40, AttentionMask::causal);
    const Inputs in = make_inputs(c, type);
    const Tensor k = positions_of(in.k, 20, 20), v = positions_of(in.v, 20, 20);
    const auto random = [&](std::int64_t columns) {  // to be overwritten
      return Tensor::random(type, {c.samples, 20, columns}, 5);
    };
    const Tensor out = random(32), d_out = random(32), d_q = random(32), d_k = random(16),
                 d_v = random(16), lse(DType::f32, {c.samples, c.heads, 20});
    Attention call = call_of(in, out, lse);
    call.k = k.view(), call.v = v.view(), call.first_key = 20, call.tokens = 40;
    run(device, call);
    AttentionBackward back = backward_of(in, out, lse, d_out, d_q, d_k, d_v);
    back.k = k.view(), back.v = v.view(), back.first_key = 20, back.tokens = 40;
    run(device, back);
    for (const Tensor* made : {&out, &d_q, &d_k, &d_v})
      for (std::int64_t i = 0; i < made->size(); ++i) ASSERT_EQ((*made)[i], 0) << i;
    for (std::int64_t i = 0; i < lse.size(); ++i)
      ASSERT_EQ(lse[i], -std::numeric_limits<double>::infinity()) << i;
  });
}

TEST(AttentionParts, RefuseKeysBehindTheSequence) {
  const Case c = some_queries(0, 8, 16, AttentionMask::causal);
  const Inputs in = make_inputs(c, DType::f32);
  const Tensor out(DType::f32, {2, 8, 32}), lse(DType::f32, {2, 2, 8});
  Attention call = call_of(in, out, lse);
  EXPECT_NO_THROW(check(call));
  call.first_key = 1, call.tokens = 16;
  EXPECT_THROW(check(call), InternalError);
  call.tokens = 17;
  EXPECT_NO_THROW(check(call));
  call.first = 10;
  EXPECT_THROW(check(call), InternalError);
}

// Counted one by one.
TEST(AttentionParts, PairsAreThoseThatSeeEachOther) {
  for (const auto mask : {AttentionMask::causal, AttentionMask::bidirectional}) {
    for (const std::int64_t window : {0, 1, 3, 20}) {
      for (const std::int64_t first : {-9, -3, 0, 2, 7, 30}) {
        for (const std::int64_t keys : {1, 5, 12}) {
          const AttentionShape shape{.heads = 1, .kv_heads = 1, .mask = mask, .window = window};
          double want = 0;
          for (std::int64_t q = first; q < first + 4; ++q) {
            for (std::int64_t k = 0; k < keys; ++k) {
              const bool near = window == 0 || std::abs(q - k) < window;
              want += near && (mask == AttentionMask::bidirectional || k <= q) ? 1 : 0;
            }
          }
          EXPECT_EQ(shape.most_pairs(first, 4, keys), want)
              << first << " behind the first of " << keys << ", window " << window;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::kernels::test::attention
