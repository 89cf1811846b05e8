#include "core/math.hpp"
#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

struct Case {
  std::int64_t samples, queries, keys, heads, kv_heads, dim, gap;
  float dropout;
  std::int64_t group = 0, skip = 0;
};
const std::vector<Case> kForward = {
    {1, 1, 1, 1, 1, 1, 0, 0},       {2, 17, 17, 3, 3, 16, 5, 0},
    {1, 70, 70, 2, 1, 20, 0, 0},    {1, 3, 131, 5, 2, 7, 1, 0, 4, 1},
    {2, 65, 65, 2, 2, 64, 0, 0.3F}, {1, 260, 300, 1, 1, 33, 0, 0.1F},
    {1, 33, 49, 2, 1, 136, 8, 0},   {1, 70, 70, 1, 1, 256, 0, 0.2F},
    {1, 100, 100, 4, 2, 32, 8, 0},  {1, 64, 150, 2, 1, 64, 0, 0},  // cuDNN's, on a GPU
};

/// What happens to probabilities and gradients of scores before they are multiplied by rows of v or
/// of others: nothing on a CPU; on a GPU they are rounded to the operands' type, which has its
/// relative error and, for f16, denormals. cuDNN also rounds each query head's gradients of keys
/// and values that heads share, before it adds them up.
struct ScoreRounding {
  double relative = 0, absolute = 0;
  bool of_heads = false;
  double of(double x) const { return relative * std::abs(x) + absolute; }
};

// Only cuDNN has several orders.
#ifdef TESSERA_REAL_CUDA
constexpr bool kRealGpu = true;
const std::vector<SumOrder> kOrders = {SumOrder::fixed, SumOrder::any};
#else
constexpr bool kRealGpu = false;
const std::vector<SumOrder> kOrders = {SumOrder::fixed};
#endif

void for_attention_devices(const std::function<void(Device&, DType, const ScoreRounding&)>& f) {
#ifndef TESSERA_REAL_CUDA
  for_cpu_devices_and_types([&](Device& device, DType type) { f(device, type, {}); });
#endif
#if defined(TESSERA_EMULATED_CUDA) || defined(TESSERA_REAL_CUDA)
  const auto gpu = tessera::test::make_cuda_test_device();
  for (DType type : kTypes) {
    SCOPED_TRACE(fmt::format("CUDA {}", to_string(type)));
    // 1.01: of what is already in error.
    const ScoreRounding rounded{1.01 * roundoff(type), write_error(type, 0), kRealGpu};
    f(*gpu, type, type == DType::f32 ? ScoreRounding{} : rounded);
  }
#endif
}

/// softmax(scale q k^T) v and its gradients in double, with what the error bounds need.
struct Reference {
  Case c;
  AttentionShape shape;
  Dropout dropout;
  Numbers q, k, v;

  std::size_t at(std::int64_t sample, std::int64_t t, std::int64_t tokens, std::int64_t head,
                 std::int64_t heads, std::int64_t d) const {
    return static_cast<std::size_t>(((sample * tokens + t) * heads + head) * c.dim + d);
  }
  std::size_t q_at(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d) const {
    return at(b, t, c.queries, h, c.heads, d);
  }
  std::size_t k_at(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d) const {
    return at(b, s, c.keys, shape.kv_head_of(h), c.kv_heads, d);
  }

  /// Probabilities of one query, before dropout; `lse` and the largest sum of |q k| come along.
  Numbers probabilities(std::int64_t b, std::int64_t h, std::int64_t t, double& lse,
                        double& magnitude) const {
    const std::int64_t visible = c.keys - c.queries + t + 1;
    Numbers p;
    double top = -1e300, sum = 0;
    for (std::int64_t s = 0; s < visible; ++s) {
      double score = 0, absolute = 0;
      for (std::int64_t d = 0; d < c.dim; ++d) {
        const double term = q[q_at(b, t, h, d)] * k[k_at(b, s, h, d)] * shape.scale;
        score += term, absolute += std::abs(term);
      }
      p.push_back(score);
      top = std::max(top, score), magnitude = std::max(magnitude, absolute);
    }
    for (double& x : p) sum += x = std::exp(x - top);
    for (double& x : p) x /= sum;
    lse = top + std::log(sum);
    return p;
  }
  double factor(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s) const {
    return dropout_factor(dropout, b, (h * c.queries + t) * c.keys + s);
  }

  Numbers forward(Numbers* lse, double* magnitude) const {
    Numbers out(q.size());
    for (std::int64_t b = 0; b < c.samples; ++b) {
      for (std::int64_t h = 0; h < c.heads; ++h) {
        for (std::int64_t t = 0; t < c.queries; ++t) {
          double row_lse = 0, row_magnitude = 0;
          const Numbers p = probabilities(b, h, t, row_lse, row_magnitude);
          if (lse != nullptr) lse->push_back(row_lse);
          if (magnitude != nullptr) *magnitude = std::max(*magnitude, row_magnitude);
          for (std::size_t s = 0; s < p.size(); ++s) {
            const auto key = static_cast<std::int64_t>(s);
            const double used = p[s] * factor(b, h, t, key);
            for (std::int64_t d = 0; d < c.dim; ++d) {
              out[q_at(b, t, h, d)] += used * v[k_at(b, key, h, d)];
            }
          }
        }
      }
    }
    return out;
  }
};

/// The outputs' sums over keys with absolute values for v.
Numbers absolute_outputs(Reference r) {
  for (double& x : r.v) x = std::abs(x);
  return r.forward(nullptr, nullptr);
}

struct Inputs {
  Tensor q, k, v, samples;
  Reference reference;
};
Inputs make_inputs(const Case& c, DType type) {
  Inputs in{.q = Tensor::random(type, {c.samples, c.queries, c.heads * c.dim}, 1, 1, c.gap),
            .k = Tensor::random(type, {c.samples, c.keys, c.kv_heads * c.dim}, 2, 1, c.gap),
            .v = Tensor::random(type, {c.samples, c.keys, c.kv_heads * c.dim}, 3, 1, c.gap),
            .samples = Tensor(DType::i64, {c.samples}),
            .reference = {}};
  for (std::int64_t b = 0; b < c.samples; ++b) in.samples.set(b, static_cast<double>(1000 + 7 * b));
  in.reference = {.c = c,
                  .shape = {.heads = c.heads,
                            .kv_heads = c.kv_heads,
                            .head_dim = c.dim,
                            .scale = 1.0F / std::sqrt(static_cast<float>(c.dim)),
                            .group = c.group,
                            .skip = c.skip},
                  .dropout = {.p = c.dropout, .seed = 5, .site = 2, .samples = in.samples.view()},
                  .q = in.q.numbers(),
                  .k = in.k.numbers(),
                  .v = in.v.numbers()};
  return in;
}

Attention call_of(const Inputs& in, const Tensor& out, const Tensor& lse) {
  return {.q = in.q.view(),
          .k = in.k.view(),
          .v = in.v.view(),
          .out = out.view(),
          .lse = lse.view(),
          .shape = in.reference.shape,
          .dropout = in.reference.dropout};
}

/// The backward of call_of(in, out, lse).
AttentionBackward backward_of(const Inputs& in, const Tensor& out, const Tensor& lse,
                              const Tensor& d_out, const Tensor& d_q, const Tensor& d_k,
                              const Tensor& d_v) {
  return {.q = in.q.view(),
          .k = in.k.view(),
          .v = in.v.view(),
          .out = out.view(),
          .lse = lse.view(),
          .d_out = d_out.view(),
          .d_q = d_q.view(),
          .d_k = d_k.view(),
          .d_v = d_v.view(),
          .shape = in.reference.shape,
          .dropout = in.reference.dropout};
}

TEST(Attention, AgreesWithDoubleSoftmax) {
  for_attention_devices([](Device& device, DType type, const ScoreRounding& rounding) {
    for (const Case& c : kForward) {
      const Inputs in = make_inputs(c, type);
      Tensor out(type, {c.samples, c.queries, c.heads * c.dim}, c.gap);
      Tensor lse(DType::f32, {c.samples, c.heads, c.queries});
      run(device, call_of(in, out, lse));
      Numbers want_lse;
      double magnitude = 0;
      const Numbers want = in.reference.forward(&want_lse, &magnitude);
      // A score errs by (D + 2) u sum |q k|; e^x makes that relative, beside 2 ulp of its own and
      // rounding of score - max; sums over keys add (S + 1) u; rescaling by a new maximum adds
      // about 4 u a tile. Numerator and denominator both: twice. A GPU's e^x is 2^(x log2 e), 4 u
      // of its own for 16-bit types, within what 8 u allow here.
      const double u = 0x1p-24;
      const double score = static_cast<double>(c.dim + 4) * u * magnitude;
      const auto keys = static_cast<double>(c.keys);
      const double relative = 2 * (2 * score + (keys + 8 + keys / 16) * u);
      const double mean = largest(in.reference.v) / (1 - static_cast<double>(c.dropout));
      const Numbers absolute = absolute_outputs(in.reference);
      expect_within(
          out, want,
          [&](std::int64_t i) {
            const auto j = static_cast<std::size_t>(i);
            // Probabilities are at most 1 and their sum at least 1 when they are rounded.
            const double error = relative * mean + rounding.relative * absolute[j] +
                                 rounding.absolute * keys * largest(in.reference.v);
            return error + write_error(type, std::abs(want[j]) + error);
          },
          "out");
      expect_within(
          lse, want_lse,
          [&](std::int64_t i) {
            return relative + 4 * u * std::abs(want_lse[static_cast<std::size_t>(i)]);
          },
          "lse");
    }
  });
}

const std::vector<Case> kBackward = {
    {1, 1, 1, 1, 1, 1, 0, 0},      {2, 17, 17, 3, 3, 16, 5, 0},
    {1, 70, 70, 4, 2, 20, 0, 0},   {1, 66, 66, 5, 2, 8, 0, 0.25F, 4, 1},
    {2, 129, 129, 2, 1, 65, 3, 0}, {1, 35, 35, 2, 1, 136, 8, 0},
    {1, 100, 100, 4, 2, 32, 8, 0},  // cuDNN's, on a GPU
};

/// Gradients in double, each with its bound.
struct Gradients {
  Numbers q, k, v, q_bound, k_bound, v_bound;
};

Gradients backward(const Reference& r, const Numbers& d_out, DType type,
                   const ScoreRounding& rounding) {
  const Case& c = r.c;
  const Numbers out = r.forward(nullptr, nullptr), absolute = absolute_outputs(r);
  const double u = 0x1p-24;
  Gradients g;
  g.q.resize(r.q.size()), g.k.resize(r.k.size()), g.v.resize(r.v.size());
  g.q_bound = g.q, g.k_bound = g.k, g.v_bound = g.v;
  const std::int64_t group = c.group > 0 ? c.group : c.heads / c.kv_heads;
  const double sums = static_cast<double>(c.keys * group + c.dim + 40) * u;
  for (std::int64_t b = 0; b < c.samples; ++b) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const Numbers k_before = g.k, v_before = g.v;
      for (std::int64_t t = 0; t < c.queries; ++t) {
        double lse = 0, magnitude = 0, delta = 0, delta_error = 0;
        const Numbers p = r.probabilities(b, h, t, lse, magnitude);
        for (std::int64_t d = 0; d < c.dim; ++d) {
          const double term = d_out[r.q_at(b, t, h, d)] * out[r.q_at(b, t, h, d)];
          delta += term;
          delta_error += (roundoff(type) + sums) * std::abs(term);  // `out` is read as written
          delta_error += std::abs(d_out[r.q_at(b, t, h, d)]) *
                         (rounding.relative * absolute[r.q_at(b, t, h, d)] +
                          rounding.absolute * static_cast<double>(c.keys) * largest(r.v));
        }
        const double p_error = 4 * (static_cast<double>(c.dim + 4) * u * magnitude +
                                    static_cast<double>(c.keys + 10) * u + 4 * u * std::abs(lse));
        for (std::size_t i = 0; i < p.size(); ++i) {
          const auto s = static_cast<std::int64_t>(i);
          const double f = r.factor(b, h, t, s);
          double d_p = 0, d_p_error = 0;
          for (std::int64_t d = 0; d < c.dim; ++d) {
            const double d_o = d_out[r.q_at(b, t, h, d)], v = r.v[r.k_at(b, s, h, d)];
            d_p += f * d_o * v;
            d_p_error += sums * f * std::abs(d_o * v);
            g.v[r.k_at(b, s, h, d)] += p[i] * f * d_o;
            g.v_bound[r.k_at(b, s, h, d)] +=
                ((p_error + sums) * p[i] * f + rounding.of(p[i] * f)) * std::abs(d_o);
          }
          const double d_s = p[i] * (d_p - delta);
          const double exact_d_s_error =
              p[i] * (d_p_error + delta_error) + p_error * std::abs(d_s) + sums * std::abs(d_s);
          const double d_s_error = exact_d_s_error + rounding.of(std::abs(d_s) + exact_d_s_error);
          for (std::int64_t d = 0; d < c.dim; ++d) {
            const double q = r.q[r.q_at(b, t, h, d)], k = r.k[r.k_at(b, s, h, d)];
            const double scale = r.shape.scale;
            g.q[r.q_at(b, t, h, d)] += scale * d_s * k;
            g.k[r.k_at(b, s, h, d)] += scale * d_s * q;
            g.q_bound[r.q_at(b, t, h, d)] += scale * d_s_error * std::abs(k);
            g.k_bound[r.k_at(b, s, h, d)] += scale * d_s_error * std::abs(q);
          }
        }
      }
      for (std::size_t i = 0; rounding.of_heads && i < g.k.size(); ++i) {
        g.k_bound[i] += rounding.of(std::abs(g.k[i] - k_before[i]) + g.k_bound[i]);
        g.v_bound[i] += rounding.of(std::abs(g.v[i] - v_before[i]) + g.v_bound[i]);
      }
    }
  }
  return g;
}

TEST(Attention, GradientsAgreeWithDouble) {
  for_attention_devices([](Device& device, DType type, const ScoreRounding& rounding) {
    for (const Case& c : kBackward) {
      const Inputs in = make_inputs(c, type);
      Tensor out(type, {c.samples, c.queries, c.heads * c.dim}, c.gap);
      Tensor lse(DType::f32, {c.samples, c.heads, c.queries});
      run(device, call_of(in, out, lse));
      const auto d_out = Tensor::random(type, {c.samples, c.queries, c.heads * c.dim}, 9, 1, c.gap);
      const Gradients want = backward(in.reference, d_out.numbers(), type, rounding);
      const auto bounded = [&](const Numbers& bound, const Numbers& value) {
        return [&, type](std::int64_t i) {
          const auto j = static_cast<std::size_t>(i);
          return bound[j] + write_error(type, std::abs(value[j]) + bound[j]);
        };
      };
      for (const SumOrder order : kOrders) {
        Tensor d_q(type, {c.samples, c.queries, c.heads * c.dim}, c.gap);
        Tensor d_k(type, {c.samples, c.keys, c.kv_heads * c.dim}, c.gap);
        Tensor d_v(type, {c.samples, c.keys, c.kv_heads * c.dim}, c.gap);
        AttentionBackward call = backward_of(in, out, lse, d_out, d_q, d_k, d_v);
        call.order = order;
        run(device, call);
        expect_within(d_q, want.q, bounded(want.q_bound, want.q), "d_q");
        expect_within(d_k, want.k, bounded(want.k_bound, want.k), "d_k");
        expect_within(d_v, want.v, bounded(want.v_bound, want.v), "d_v");
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
TEST(Attention, UnevenPartsOfTheHeadsMakeTheWhole) {
  const Case c{2, 70, 70, 12, 3, 20, 0, 0.2F};
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
                            .shape = part.shape,
                            .dropout = dropout});
      run(device, AttentionBackward{.q = head_columns(in.q),
                                    .k = kv_columns(in.k),
                                    .v = kv_columns(in.v),
                                    .out = head_columns(parts_out),
                                    .lse = part_lse.view(),
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

// Rows that begin on 16 bytes are read as whole vectors, others element by element; with dropout,
// for cuDNN, whose bits are others, would take some of these.
TEST(Attention, AlignmentChangesNoBit) {
  for_devices_and_types([](Device& device, DType type) {
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

TEST(Attention, ReferenceGradientsAgreeWithFiniteDifferences) {
  const Case c{1, 9, 9, 4, 2, 3, 0, 0.25F};
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

}  // namespace
}  // namespace tessera::kernels::test
