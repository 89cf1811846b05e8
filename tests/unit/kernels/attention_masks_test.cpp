// Attention where a query does not see just the keys up to its own: of documents, windows,
// encoders, with capped scores.
#include <utility>

#include "tests/unit/kernels/attention_reference.hpp"

namespace tessera::kernels::test::attention {
namespace {

constexpr auto kCausal = AttentionMask::causal;
constexpr auto kBidirectional = AttentionMask::bidirectional;

/// As many queries as keys.
Case square(std::int64_t tokens, AttentionMask mask, std::int64_t window = 0, float soft_cap = 0,
            std::vector<std::int64_t> lengths = {}) {
  return {.samples = 1,
          .queries = tokens,
          .keys = tokens,
          .heads = 1,
          .kv_heads = 1,
          .dim = 16,
          .mask = mask,
          .window = window,
          .soft_cap = soft_cap,
          .lengths = std::move(lengths)};
}

/// Each feature alone at sizes around those of tiles, then together.
std::vector<Case> square_cases() {
  std::vector<Case> all;
  for (const std::int64_t tokens : {1, 63, 64, 65, 130})
    all.push_back(square(tokens, kBidirectional));
  for (const std::int64_t window : {1, 64, 70}) all.push_back(square(130, kCausal, window));
  for (const std::int64_t window : {1, 65}) all.push_back(square(130, kBidirectional, window));
  for (const auto mask : {kCausal, kBidirectional}) {
    all.push_back(square(65, mask, 0, 0.5F));
    for (const auto& lengths :
         std::vector<std::vector<std::int64_t>>{{1, 63, 64, 2}, {65, 1, 64}}) {
      all.push_back(square(130, mask, 0, 0, lengths));
    }
  }
  all.push_back(square(7, kCausal, 0, 0, {1, 1, 1, 1, 1, 1, 1}));
  Case together{.samples = 2,
                .queries = 67,
                .keys = 67,
                .heads = 3,
                .kv_heads = 2,
                .dim = 20,
                .gap = 3,
                .dropout = 0.2F,
                .group = 2,
                .skip = 1,
                .window = 20,
                .soft_cap = 1,
                .lengths = {1, 36, 30}};
  all.push_back(together);
  together.mask = kBidirectional;
  all.push_back(together);
  together.samples = 1, together.dim = 136, together.gap = 8;
  all.push_back(together);
  Case unread = square(70, kCausal);  // the second kv head has no query head here
  unread.heads = 2, unread.kv_heads = 2, unread.group = 2;
  all.push_back(unread);
  return all;
}

/// Queries from some token on, as of a chunk of a sequence.
std::vector<Case> chunk_cases() {
  std::vector<Case> all;
  const auto add = [&](Case c, std::int64_t first, std::int64_t queries) {
    c.first = first, c.queries = queries;
    all.push_back(c);
  };
  for (const auto mask : {kCausal, kBidirectional}) {
    for (const auto& [first, queries] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {0, 40}, {64, 64}, {33, 70}, {190, 6}}) {
      add(square(196, mask), first, queries);
      add(square(196, mask, 21), first, queries);
    }
    add(square(130, mask, 0, 0.5F, {31, 40, 59}), 40, 50);
    Case heads = square(70, mask, 30, 0, {50, 20});
    heads.samples = 2, heads.heads = 3, heads.kv_heads = 2, heads.dim = 20, heads.gap = 3;
    heads.group = 2, heads.skip = 1, heads.dropout = 0.2F;
    add(heads, 24, 30);
  }
  Case wide = square(80, kCausal);
  wide.samples = 2, wide.dim = 136, wide.gap = 8;
  add(wide, 16, 48);
  Case cudnn = square(256, kCausal);
  cudnn.samples = 2, cudnn.heads = 4, cudnn.kv_heads = 2, cudnn.dim = 64;
  add(cudnn, 64, 64);
  return all;
}

TEST(AttentionMasks, ChunksOfASequenceAgreeWithDouble) {
  const std::vector<Case> cases = chunk_cases();
  for_attention_devices([&](Device& device, DType type, const ScoreRounding& rounding) {
    for (const Case& c : cases) {
      SCOPED_TRACE(fmt::format("{} queries from token {} of {}", c.queries, c.first, c.keys));
      expect_outputs(device, type, rounding, c);
      expect_gradients(device, type, rounding, c);
    }
  });
}

TEST(AttentionMasks, RefusesQueriesBehindTheKeys) {
  Case c = square(16, kCausal);
  c.queries = 8, c.first = 9;
  const Inputs in = make_inputs(c, DType::f32);
  const Tensor out(DType::f32, {1, 8, 16}), lse(DType::f32, {1, 1, 8});
  EXPECT_THROW(check(call_of(in, out, lse)), InternalError);
}

TEST(AttentionMasks, OutputsAgreeWithDouble) {
  std::vector<Case> cases = square_cases();
  // Queries whose earlier keys come from a cache.
  for (const auto mask : {kCausal, kBidirectional}) {
    Case cached = square(130, mask, 50, 0, {70, 60});
    cached.queries = 72;
    cases.push_back(cached);
  }
  cases.push_back(square(300, kCausal, 0, 0, {10, 270, 20}));  // more queries than share keys
  for_attention_devices([&](Device& device, DType type, const ScoreRounding& rounding) {
    for (const Case& c : cases) expect_outputs(device, type, rounding, c);
  });
}

TEST(AttentionMasks, GradientsAgreeWithDouble) {
  std::vector<Case> cases = square_cases();
  // More queries than are packed at once.
  cases.push_back(square(300, kCausal, 90));
  cases.push_back(square(300, kBidirectional, 90, 0, {20, 270, 10}));
  for_attention_devices([&](Device& device, DType type, const ScoreRounding& rounding) {
    for (const Case& c : cases) expect_gradients(device, type, rounding, c);
  });
}

/// out, lse, d_q, d_k, d_v.
std::vector<Tensor> run_both(Device& device, const Inputs& in, const Tensor& d_out) {
  const Case& c = in.reference.c;
  const DType type = in.q.view().type;
  std::vector<Tensor> all;
  all.push_back(Tensor(type, {c.samples, c.queries, c.heads * c.dim}));
  all.push_back(Tensor(DType::f32, {c.samples, c.heads, c.queries}));
  all.push_back(Tensor(type, {c.samples, c.queries, c.heads * c.dim}));
  for (int i = 0; i < 2; ++i) {
    all.push_back(Tensor(type, {c.samples, c.keys, c.kv_heads * c.dim}));
  }
  run(device, call_of(in, all[0], all[1]));
  run(device, backward_of(in, all[0], all[1], d_out, all[2], all[3], all[4]));
  return all;
}

// Dropout keeps the calls from cuDNN, whose bits are others.
TEST(AttentionMasks, OneDocumentHasTheBitsOfNone) {
  for_devices_of_products([](Device& device, DType type) {
    for (const auto mask : {kCausal, kBidirectional}) {
      Case c = square(100, mask, 0, 0, {100});
      c.dropout = 0.1F;
      const auto d_out = Tensor::random(type, {c.samples, c.queries, c.heads * c.dim}, 9);
      const auto with = run_both(device, make_inputs(c, type), d_out);
      c.lengths = {};
      const auto without = run_both(device, make_inputs(c, type), d_out);
      for (std::size_t i = 0; i < with.size(); ++i) EXPECT_TRUE(with[i].same_bits(without[i])) << i;
    }
  });
}

TEST(AttentionMasks, AWindowOfAllTokensHasTheBitsOfNone) {
  for_devices_of_products([](Device& device, DType type) {
    for (const auto mask : {kCausal, kBidirectional}) {
      Case c = square(70, mask, 70);
      c.dropout = 0.1F;
      const auto d_out = Tensor::random(type, {c.samples, c.queries, c.heads * c.dim}, 9);
      const auto with = run_both(device, make_inputs(c, type), d_out);
      c.window = 0;
      const auto without = run_both(device, make_inputs(c, type), d_out);
      for (std::size_t i = 0; i < with.size(); ++i) EXPECT_TRUE(with[i].same_bits(without[i])) << i;
    }
  });
}

/// Tokens [first, first + count) of the one sample of a tensor of tokens, or of (H, T).
Tensor tokens_of(const Tensor& whole, std::int64_t first, std::int64_t count, bool by_head) {
  if (!by_head) return positions_of(whole, first, count);
  const std::int64_t heads = whole.view().extent(1), tokens = whole.view().extent(2);
  Tensor part(whole.view().type, {1, heads, count});
  for (std::int64_t i = 0; i < part.size(); ++i) {
    part.set(i, whole[i / count * tokens + first + i % count]);
  }
  return part;
}

// Of a document whose neighbours are not even numbers: nothing of them is read.
TEST(AttentionMasks, OnACpuADocumentHasTheBitsThatItHasAlone) {
  const auto expect_bits_alone = [](Device& device, DType type) {
    for (const auto mask : {kCausal, kBidirectional}) {
      for (const std::int64_t window : {0, 30}) {
        const std::int64_t first = 37, count = 100;
        Case c = square(200, mask, window, 3, {first, count, 63});
        Inputs in = make_inputs(c, type);
        auto d_out = Tensor::random(type, {c.samples, c.queries, c.heads * c.dim}, 9);
        c.queries = c.keys = count, c.lengths = {count};
        Inputs alone = make_inputs(c, type);
        for (auto member : {&Inputs::q, &Inputs::k, &Inputs::v}) {
          alone.*member = positions_of(in.*member, first, count);
        }
        const auto want = run_both(device, alone, positions_of(d_out, first, count));
        for (Tensor* t : {&in.q, &in.k, &in.v, &d_out}) {
          for (std::int64_t i = 0; i < t->size(); ++i) {
            const std::int64_t token = i / t->view().cols();
            if (token < first || token >= first + count) t->set(i, std::nan(""));
          }
        }
        const auto got = run_both(device, in, d_out);
        for (std::size_t i = 0; i < got.size(); ++i) {
          EXPECT_TRUE(tokens_of(got[i], first, count, i == 1).same_bits(want[i])) << i;
        }
      }
    }
  };
  for_cpu_devices_and_types(expect_bits_alone);
  for_matrix_device(expect_bits_alone);
}

/// Out, lse and d_q of queries [first, first + queries) of a case, from what all have.
void expect_bits_of_some_queries(Device& device, const Inputs& in, const Tensor& d_out,
                                 const std::vector<Tensor>& all, std::int64_t first,
                                 std::int64_t queries) {
  Case c = in.reference.c;
  c.first = first, c.queries = queries;
  Inputs some = make_inputs(c, in.q.view().type);
  some.q = positions_of(in.q, first, queries);
  some.k = in.k.copy(), some.v = in.v.copy();
  const auto got = run_both(device, some, positions_of(d_out, first, queries));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(got[i].same_bits(tokens_of(all[i], first, queries, i == 1)))
        << "output " << i << " of " << queries << " queries from token " << first;
  }
}

// However a prompt comes in chunks, or queries are divided over ranks.
TEST(AttentionMasks, OnACpuAQueryHasTheBitsThatItHasAmongOthers) {
  const auto expect = [](Device& device, DType type) {
    for (const auto mask : {kCausal, kBidirectional}) {
      for (const std::int64_t window : {0, 45}) {
        for (const auto& lengths :
             std::vector<std::vector<std::int64_t>>{{}, {37, 150, 103}, {290}}) {
          Case c = square(290, mask, window, 0, lengths);
          c.dim = 40;
          const Inputs in = make_inputs(c, type);
          const auto d_out = Tensor::random(type, {c.samples, c.queries, c.dim}, 9);
          const auto all = run_both(device, in, d_out);
          for (const auto& [first, queries] : std::vector<std::pair<std::int64_t, std::int64_t>>{
                   {0, 2}, {13, 31}, {100, 190}, {35, 4}, {250, 40}})
            expect_bits_of_some_queries(device, in, d_out, all, first, queries);
        }
      }
    }
  };
  for_cpu_devices_and_types(expect);
  for_matrix_device(expect);
}

TEST(AttentionMasks, OnACpuRefusesDocumentsThatDoNotFollowOneAnother) {
  const auto device = make_cpu_device({.threads = 1});
  const Tensor x(DType::f32, {2, 3, 4}), lse(DType::f32, {2, 1, 3});
  const auto refused = [&](std::vector<double> rows) {
    Tensor documents(DType::i32, {2, 3, 2});
    for (std::int64_t i = 0; i < 12; ++i) documents.set(i, rows[static_cast<std::size_t>(i)]);
    const AttentionShape shape{.heads = 1, .kv_heads = 1, .head_dim = 4, .scale = 1};
    try {
      run(*device, Attention{.q = x.view(),
                             .k = x.view(),
                             .v = x.view(),
                             .out = x.view(),
                             .documents = documents.view(),
                             .shape = shape});
    } catch (const InternalError&) {
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refused({0, 1, 1, 3, 1, 3, 0, 3, 0, 3, 0, 3}));
  EXPECT_TRUE(refused({0, 1, 2, 3, 2, 3, 0, 3, 0, 3, 0, 3})) << "a gap";
  EXPECT_TRUE(refused({0, 1, 1, 3, 2, 3, 0, 3, 0, 3, 0, 3})) << "tokens that disagree";
  EXPECT_TRUE(refused({0, 1, 1, 3, 1, 3, 0, 3, 0, 3, 0, 4})) << "beyond the sample";
  EXPECT_TRUE(refused({0, 1, 1, 3, 1, 3, 0, 0, 0, 0, 0, 0})) << "empty";
  EXPECT_TRUE(refused({-1, 1, 1, 3, 1, 3, 0, 3, 0, 3, 0, 3})) << "before the sample";
}

TEST(AttentionMasks, FlopAreOfThePairsThatMaskAndWindowLeave) {
  for (const auto mask : {kCausal, kBidirectional}) {
    for (const std::int64_t queries : {1, 7, 20}) {
      for (const auto& [window, first] : std::vector<std::pair<std::int64_t, std::int64_t>>{
               {0, -1}, {1, -1}, {5, -1}, {19, -1}, {20, -1}, {50, -1}, {0, 0}, {5, 0}, {6, 11}}) {
        if (first + queries > 20) continue;
        Case c = square(20, mask, window);
        c.queries = queries, c.first = first;
        const Inputs in = make_inputs(c, DType::f32);
        double pairs = 0;
        for (std::int64_t t = 0; t < queries; ++t) {
          for (std::int64_t s = 0; s < c.keys; ++s) pairs += in.reference.sees(0, t, s) ? 1 : 0;
        }
        const Tensor out(DType::f32, {1, queries, 16}), lse(DType::f32, {1, 1, queries});
        EXPECT_EQ(call_of(in, out, lse).flop(), 4 * 16 * pairs) << queries << " " << window;
        EXPECT_EQ(backward_of(in, out, lse, out, out, out, out).flop(), 10 * 16 * pairs) << window;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::kernels::test::attention
