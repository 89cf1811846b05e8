#include "tests/unit/kernels/attention_reference.hpp"

namespace tessera::kernels::test::attention {
namespace {

const std::vector<Case> kForward = {
    {1, 1, 1, 1, 1, 1, 0, 0},       {2, 17, 17, 3, 3, 16, 5, 0},
    {1, 70, 70, 2, 1, 20, 0, 0},    {1, 3, 131, 5, 2, 7, 1, 0, 4, 1},
    {2, 65, 65, 2, 2, 64, 0, 0.3F}, {1, 260, 300, 1, 1, 33, 0, 0.1F},
    {1, 33, 49, 2, 1, 136, 8, 0},   {1, 70, 70, 1, 1, 256, 0, 0.2F},
    {1, 100, 100, 4, 2, 32, 8, 0},  {1, 64, 150, 2, 1, 64, 0, 0},  // cuDNN's, on a GPU
    {2, 72, 72, 2, 1, 64, 0, 0.3F}, {1, 40, 136, 2, 2, 136, 8, 0.2F},
};

TEST(Attention, AgreesWithDoubleSoftmax) {
  for_attention_devices([](Device& device, DType type, const ScoreRounding& rounding) {
    for (const Case& c : kForward) expect_outputs(device, type, rounding, c);
  });
}

// Which need not be packed: the next token of sequences that are generated.
const std::vector<Case> kSingle = {{2, 1, 131, 4, 2, 64, 0},
                                   {1, 1, 200, 5, 2, 7, 1, 0, 4, 1},
                                   {1, 1, 64, 2, 1, 136, 8},
                                   {1, 1, 70, 2, 2, 33, 0, 0.2F},
                                   {.samples = 1,
                                    .queries = 1,
                                    .keys = 150,
                                    .heads = 2,
                                    .kv_heads = 1,
                                    .dim = 80,
                                    .gap = 3,
                                    .window = 70,
                                    .soft_cap = 2},
                                   {.samples = 2,
                                    .queries = 1,
                                    .keys = 100,
                                    .heads = 3,
                                    .kv_heads = 1,
                                    .dim = 16,
                                    .gap = 0,
                                    .lengths = {40, 60}},
                                   {.samples = 1,
                                    .queries = 1,
                                    .keys = 190,
                                    .heads = 2,
                                    .kv_heads = 2,
                                    .dim = 20,
                                    .gap = 0,
                                    .mask = AttentionMask::bidirectional,
                                    .window = 50,
                                    .first = 100}};

TEST(Attention, OfASingleQueryAgreesWithDoubleSoftmax) {
  for_attention_devices([](Device& device, DType type, const ScoreRounding& rounding) {
    for (const Case& c : kSingle) expect_outputs(device, type, rounding, c);
  });
}

const std::vector<Case> kBackward = {
    {1, 1, 1, 1, 1, 1, 0, 0},       {2, 17, 17, 3, 3, 16, 5, 0},
    {1, 70, 70, 4, 2, 20, 0, 0},    {1, 66, 66, 5, 2, 8, 0, 0.25F, 4, 1},
    {2, 129, 129, 2, 1, 65, 3, 0},  {1, 35, 35, 2, 1, 136, 8, 0},
    {1, 100, 100, 4, 2, 32, 8, 0},  // cuDNN's, on a GPU
    {2, 72, 72, 2, 1, 16, 0, 0.3F}, {1, 136, 136, 2, 1, 136, 8, 0.2F},
    {1, 300, 300, 2, 1, 40, 0, 0},
};

TEST(Attention, GradientsAgreeWithDouble) {
  for_attention_devices([](Device& device, DType type, const ScoreRounding& rounding) {
    for (const Case& c : kBackward) expect_gradients(device, type, rounding, c);
  });
}

/// The first columns of each head of x, `dim` of `from` there, as heads of `to`; others are 0.
Tensor with_columns(const Tensor& x, std::int64_t heads, std::int64_t from, std::int64_t to) {
  Tensor y(x.view().type, {x.view().extent(0), x.view().extent(1), heads * to});
  for (std::int64_t i = 0; i < y.size(); ++i) {
    const std::int64_t head = i / to, column = i % to;
    y.set(i, column < from ? x[head * from + column] : 0);
  }
  return y;
}

// Values of fewer columns than keys, or of more, are those of as many where zeros are in the place
// of what is not there. (With dropout: cuDNN, whose bits are others, would take the latter.)
TEST(Attention, ValuesMayBeOfAnotherWidth) {
  for_devices_of_products([](Device& device, DType type) {
    for (const auto& [dim, values] : tessera::test::some_of(
             std::vector{std::pair{20, 12}, {24, 16}, {12, 20}, {7, 1}, {192, 128}, {40, 100}})) {
      for (const std::int64_t queries : {70, 1}) {
        const Case c{.samples = 2,
                     .queries = queries,
                     .keys = 70,
                     .heads = 4,
                     .kv_heads = 2,
                     .dim = std::max(dim, values),
                     .gap = 0,
                     .dropout = queries == 1 ? 0.0F : 0.1F,
                     .window = 50,
                     .lengths = {60, 10}};
        const Inputs padded = make_inputs(c, type);
        const std::int64_t wide = c.dim;
        // Zeros in what is not there.
        const auto q = with_columns(padded.q, c.heads, wide, dim),
                   k = with_columns(padded.k, c.kv_heads, wide, dim),
                   v = with_columns(padded.v, c.kv_heads, wide, values);
        const auto q0 = with_columns(q, c.heads, dim, wide),
                   k0 = with_columns(k, c.kv_heads, dim, wide),
                   v0 = with_columns(v, c.kv_heads, values, wide);
        const auto tensor = [&](std::int64_t tokens, std::int64_t heads, std::int64_t columns) {
          return Tensor(type, {c.samples, tokens, heads * columns});
        };
        const Tensor out = tensor(queries, c.heads, values), out0 = tensor(queries, c.heads, wide),
                     lse(DType::f32, {c.samples, c.heads, queries}), lse0 = lse.copy();
        Attention call{.q = q0.view(),
                       .k = k0.view(),
                       .v = v0.view(),
                       .out = out0.view(),
                       .lse = lse0.view(),
                       .documents = padded.document_view(),
                       .shape = padded.reference.shape,
                       .dropout = padded.reference.dropout};
        run(device, call);
        AttentionShape shape = call.shape;
        shape.head_dim = dim, shape.value_dim = values;
        call.q = q.view(), call.k = k.view(), call.v = v.view(), call.out = out.view();
        call.lse = lse.view(), call.shape = shape;
        run(device, call);
        EXPECT_TRUE(lse.same_bits(lse0));
        EXPECT_TRUE(out.same_bits(with_columns(out0, c.heads, wide, values)));
        if (queries == 1) continue;

        const auto d_out =
                       with_columns(Tensor::random(type, {c.samples, queries, c.heads * wide}, 9),
                                    c.heads, wide, values),
                   d_out0 = with_columns(d_out, c.heads, values, wide);
        const Tensor d_q = tensor(queries, c.heads, dim), d_q0 = tensor(queries, c.heads, wide),
                     d_k = tensor(c.keys, c.kv_heads, dim), d_k0 = tensor(c.keys, c.kv_heads, wide),
                     d_v = tensor(c.keys, c.kv_heads, values),
                     d_v0 = tensor(c.keys, c.kv_heads, wide);
        const auto back = [&](const AttentionShape& s, const Tensor& q_, const Tensor& k_,
                              const Tensor& v_, const Tensor& out_, const Tensor& d_out_,
                              const Tensor& d_q_, const Tensor& d_k_, const Tensor& d_v_) {
          run(device, AttentionBackward{.q = q_.view(),
                                        .k = k_.view(),
                                        .v = v_.view(),
                                        .out = out_.view(),
                                        .lse = lse.view(),
                                        .documents = padded.document_view(),
                                        .d_out = d_out_.view(),
                                        .d_q = d_q_.view(),
                                        .d_k = d_k_.view(),
                                        .d_v = d_v_.view(),
                                        .shape = s,
                                        .dropout = padded.reference.dropout});
        };
        back(shape, q, k, v, out, d_out, d_q, d_k, d_v);
        back(padded.reference.shape, q0, k0, v0, out0, d_out0, d_q0, d_k0, d_v0);
        EXPECT_TRUE(d_q.same_bits(with_columns(d_q0, c.heads, wide, dim)));
        EXPECT_TRUE(d_k.same_bits(with_columns(d_k0, c.kv_heads, wide, dim)));
        EXPECT_TRUE(d_v.same_bits(with_columns(d_v0, c.kv_heads, wide, values)));
      }
    }
  });
}

/// Query heads [heads.begin, heads.end) of a case, with the kv heads that they read.
struct HeadPart {
  Range heads, kv;
  AttentionShape shape;
};
HeadPart head_part(const AttentionShape& whole, Range heads) {
  const Range kv{whole.kv_head_of(heads.begin), whole.kv_head_of(heads.end - 1) + 1};
  HeadPart part{heads, kv, whole};
  part.shape.group = whole.heads / whole.kv_heads;
  part.shape.skip = heads.begin - kv.begin * part.shape.group;
  part.shape.heads = heads.count(), part.shape.kv_heads = kv.count();
  return part;
}

// Trap 21: ranks whose heads begin and end within a group of heads that share a kv head.
void expect_parts_of_heads_to_make(const Case& c) {
  const std::vector<Range> cuts = {{0, 3}, {3, 4}, {4, 9}, {9, 10}, {10, 12}};
  for_attention_devices([&](Device& device, DType type, const ScoreRounding& rounding) {
    const Inputs in = make_inputs(c, type);
    const std::vector<std::int64_t> q_shape = {c.samples, c.queries, c.heads * c.dim},
                                    k_shape = {c.samples, c.keys, c.kv_heads * c.dim};
    const Tensor out(type, q_shape), lse(DType::f32, {c.samples, c.heads, c.queries}),
        d_q(type, q_shape), d_k(type, k_shape), d_v(type, k_shape), parts_out(type, q_shape),
        parts_d_q(type, q_shape);
    const auto d_out = Tensor::random(type, q_shape, 9);
    run(device, call_of(in, out, lse));
    run(device, backward_of(in, out, lse, d_out, d_q, d_k, d_v));

    Tensor sum_d_k(DType::f32, k_shape), sum_d_v(DType::f32, k_shape);
    Numbers k_written(static_cast<std::size_t>(sum_d_k.size())), v_written = k_written;
    for (Range heads : cuts) {
      const HeadPart part = head_part(in.reference.shape, heads);
      const auto head_columns = [&](const Tensor& t) {
        return t.view().col_range(heads.begin * c.dim, heads.count() * c.dim);
      };
      const auto kv_columns = [&](const Tensor& t) {
        return t.view().col_range(part.kv.begin * c.dim, part.kv.count() * c.dim);
      };
      Dropout dropout = in.reference.dropout;
      dropout.first = heads.begin * c.queries * c.keys;
      const Tensor part_lse(DType::f32, {c.samples, heads.count(), c.queries}),
          part_d_k(type, {c.samples, c.keys, part.kv.count() * c.dim}), part_d_v = part_d_k.copy();
      run(device, Attention{.q = head_columns(in.q),
                            .k = kv_columns(in.k),
                            .v = kv_columns(in.v),
                            .out = head_columns(parts_out),
                            .lse = part_lse.view(),
                            .documents = in.document_view(),
                            .shape = part.shape,
                            .dropout = dropout});
      run(device, AttentionBackward{.q = head_columns(in.q),
                                    .k = kv_columns(in.k),
                                    .v = kv_columns(in.v),
                                    .out = head_columns(parts_out),
                                    .lse = part_lse.view(),
                                    .documents = in.document_view(),
                                    .d_out = head_columns(d_out),
                                    .d_q = head_columns(parts_d_q),
                                    .d_k = part_d_k.view(),
                                    .d_v = part_d_v.view(),
                                    .shape = part.shape,
                                    .dropout = dropout});
      for (std::int64_t i = 0; i < part_lse.size(); ++i) {
        const std::int64_t per_sample = heads.count() * c.queries;
        ASSERT_EQ(
            part_lse[i],
            lse[i / per_sample * c.heads * c.queries + heads.begin * c.queries + i % per_sample]);
      }
      const auto add = [&](const Tensor& x, Tensor& sum, Numbers& written) {
        for (std::int64_t i = 0; i < x.size(); ++i) {
          const std::int64_t columns = part.kv.count() * c.dim;
          const std::int64_t to =
              i / columns * c.kv_heads * c.dim + part.kv.begin * c.dim + i % columns;
          sum.set(to, sum[to] + x[i]);
          written[static_cast<std::size_t>(to)] +=
              write_error(type, x[i]) * 1.01 + 0x1p-24 * std::abs(sum[to]);
        }
      };
      add(part_d_k, sum_d_k, k_written);
      add(part_d_v, sum_d_v, v_written);
    }
    EXPECT_TRUE(parts_out.same_bits(out));
    EXPECT_TRUE(parts_d_q.same_bits(d_q));
    // Whole and parts add the same terms, each with the bound of its exact value; parts are written
    // and added up besides.
    const Gradients want = backward(in.reference, d_out.numbers(), type, rounding);
    const auto check = [&](const Tensor& whole, const Tensor& sum, const Numbers& bound,
                           const Numbers& written, const char* what) {
      expect_within(
          sum, whole.numbers(),
          [&](std::int64_t i) {
            const auto j = static_cast<std::size_t>(i);
            return 2 * bound[j] + written[j] + write_error(type, whole[i]) * 1.01;
          },
          what);
    };
    check(d_k, sum_d_k, want.k_bound, k_written, "d_k");
    check(d_v, sum_d_v, want.v_bound, v_written, "d_v");
  });
}
TEST(Attention, UnevenPartsOfTheHeadsMakeTheWhole) {
  expect_parts_of_heads_to_make({2, 70, 70, 12, 3, 20, 0, 0.2F});
  expect_parts_of_heads_to_make({.samples = 2,
                                 .queries = 70,
                                 .keys = 70,
                                 .heads = 12,
                                 .kv_heads = 3,
                                 .dim = 20,
                                 .dropout = 0.2F,
                                 .mask = AttentionMask::bidirectional,
                                 .window = 30,
                                 .soft_cap = 2,
                                 .lengths = {1, 60, 9}});
}

// Rows that begin on 16 bytes are read as whole vectors, others element by element; with dropout,
// for cuDNN, whose bits are others, would take some of these.
TEST(Attention, AlignmentChangesNoBit) {
  for_devices_of_products([](Device& device, DType type) {
    const auto run_with = [&](std::int64_t gap) {
      const Case c{1, 70, 70, 2, 1, 24, gap, 0.1F};
      const Inputs in = make_inputs(c, type);
      const std::vector<std::int64_t> q_shape = {1, 70, 48}, k_shape = {1, 70, 24};
      std::vector<Tensor> all;
      for (const auto& shape : {q_shape, q_shape, k_shape, k_shape}) {
        all.push_back(Tensor(type, shape, gap));
      }
      all.push_back(Tensor(DType::f32, {1, 2, 70}));
      const auto d_out = Tensor::random(type, q_shape, 9, 1, gap);
      run(device, call_of(in, all[0], all[4]));
      run(device, backward_of(in, all[0], all[4], d_out, all[1], all[2], all[3]));
      return all;
    };
    const auto vectors = run_with(0), elements = run_with(3);
    for (std::size_t i = 0; i < vectors.size(); ++i) {
      EXPECT_TRUE(vectors[i].same_bits(elements[i])) << i;
    }
  });
}

TEST(Attention, RefusesKvHeadsThatTheHeadsDoNotHave) {
  const auto device = make_cpu_device({.threads = 1});
  const Tensor q(DType::f32, {1, 3, 5 * 4}), k(DType::f32, {1, 3, 2 * 4});
  Attention call{.q = q.view(),
                 .k = k.view(),
                 .v = k.view(),
                 .out = q.view(),
                 .shape = {.heads = 5, .kv_heads = 2, .head_dim = 4}};
  EXPECT_THROW(device->run(call), InternalError) << "unequal groups";
  call.shape.group = 3, call.shape.skip = 2;
  EXPECT_THROW(device->run(call), InternalError) << "the last head's kv head is a third";
}

void expect_reference_to_have_its_gradients(const Case& c) {
  const Inputs in = make_inputs(c, DType::f32);
  const Numbers d_out = Tensor::random(DType::f32, {c.queries * c.heads * c.dim}, 9).numbers();
  Reference r = in.reference;
  const Gradients g = backward(r, d_out, DType::f32, {});
  const auto check = [&](Numbers Reference::*operand, const Numbers& got) {
    const Numbers want = numeric_gradient(
        [&](const Numbers& x) {
          Reference moved = r;
          moved.*operand = x;
          return dot(moved.forward(nullptr, nullptr), d_out);
        },
        r.*operand);
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6);
  };
  check(&Reference::q, g.q);
  check(&Reference::k, g.k);
  check(&Reference::v, g.v);
}
TEST(Attention, ReferenceGradientsAgreeWithFiniteDifferences) {
  expect_reference_to_have_its_gradients({1, 9, 9, 4, 2, 3, 0, 0.25F});
  for (const auto mask : {AttentionMask::causal, AttentionMask::bidirectional}) {
    expect_reference_to_have_its_gradients({.samples = 1,
                                            .queries = 9,
                                            .keys = 9,
                                            .heads = 4,
                                            .kv_heads = 2,
                                            .dim = 3,
                                            .dropout = 0.25F,
                                            .mask = mask,
                                            .window = 3,
                                            .soft_cap = 1.5F,
                                            .lengths = {5, 1, 3}});
  }
}

}  // namespace
}  // namespace tessera::kernels::test::attention
