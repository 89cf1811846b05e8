// What the tests of attention share: cases, a reference in double with bounds of its errors, and
// the comparison of devices with it.
#pragma once

#include <algorithm>

#include "core/math.hpp"
#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test::attention {

struct Case {
  std::int64_t samples, queries, keys, heads, kv_heads, dim, gap;
  float dropout = 0;
  std::int64_t group = 0, skip = 0;
  AttentionMask mask = AttentionMask::causal;
  std::int64_t window = 0;
  float soft_cap = 0;
  std::vector<std::int64_t> lengths = {};  // of each sample's documents; the second's the other way
  std::int64_t first = -1;                 // Attention::first
  std::int64_t first_token() const { return first < 0 ? keys - queries : first; }
};
/// What happens to probabilities and gradients of scores before they are multiplied by rows of v or
/// of others: they are rounded to the operands' type, but those of f16 on a CPU are not. That type
/// has its relative error and, for f16, denormals; of bf16 what is below 0x1p-126 may be taken for
/// 0. cuDNN also rounds each query head's gradients of keys
/// and values that heads share, before it adds them up.
struct ScoreRounding {
  double relative = 0, absolute = 0;
  bool of_heads = false;
  double of(double x) const { return relative * std::abs(x) + absolute; }
};

/// Only cuDNN has several.
inline std::vector<SumOrder> orders() {
  return gpu() == Gpu::real ? std::vector{SumOrder::fixed, SumOrder::any}
                            : std::vector{SumOrder::fixed};
}

inline void for_attention_devices(
    const std::function<void(Device&, DType, const ScoreRounding&)>& f) {
  const auto rounded = [](DType type, bool of_heads) -> ScoreRounding {
    if (type == DType::f32) return {};
    // 1.01: of what is already in error.
    return {1.01 * roundoff(type), type == DType::bf16 ? 0x1p-126 : write_error(type, 0), of_heads};
  };
  if (gpu() != Gpu::real) {
    for_cpu_devices_and_types([&](Device& device, DType type) {
      f(device, type, type == DType::bf16 ? rounded(type, false) : ScoreRounding{});
    });
    for_matrix_device([&](Device& device, DType type) { f(device, type, rounded(type, false)); });
  }
  if (gpu() == Gpu::none) return;
  const auto device = tessera::test::make_cuda_test_device();
  for (DType type : gpu_types()) {
    SCOPED_TRACE(fmt::format("CUDA {}", to_string(type)));
    f(*device, type, rounded(type, gpu() == Gpu::real));
  }
}

/// softmax(scale q k^T) v and its gradients in double, with what the error bounds need.
struct Reference {
  Case c;
  AttentionShape shape;
  Dropout dropout;
  Numbers q, k, v;
  std::vector<std::int64_t> document;  // of each token of each sample; empty: one a sample

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

  bool sees(std::int64_t b, std::int64_t t, std::int64_t s) const {
    const std::int64_t query = c.first_token() + t;
    const auto of = [&](std::int64_t token) {
      return document[static_cast<std::size_t>(b * c.keys + token)];
    };
    if (!document.empty() && of(query) != of(s)) return false;
    if (shape.window > 0 && std::abs(query - s) >= shape.window) return false;
    return shape.mask == AttentionMask::bidirectional || s <= query;
  }

  /// A scaled score, capped, and the slope there.
  double capped(double score, double* slope = nullptr) const {
    if (shape.soft_cap == 0) return score;
    const double cap = shape.soft_cap, t = std::tanh(score / cap);
    if (slope != nullptr) *slope = 1 - t * t;
    return cap * t;
  }
  double score(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s,
               double* absolute = nullptr) const {
    double sum = 0;
    for (std::int64_t d = 0; d < c.dim; ++d) {
      const double term = q[q_at(b, t, h, d)] * k[k_at(b, s, h, d)] * shape.scale;
      sum += term;
      if (absolute != nullptr) *absolute += std::abs(term);
    }
    return sum;
  }
  /// What a score errs by for each unit of sum |q k|: D + 2 roundings, or, of one that is capped,
  /// of the quotient by the cap twice, of tanh by 8 (4 ulp) and once when it is multiplied back.
  double score_error() const {
    return static_cast<double>(c.dim + 4 + (shape.soft_cap > 0 ? 11 : 0)) * 0x1p-24;
  }

  /// Probabilities of one query, before dropout, 0 of keys that it does not see; `lse` and the
  /// largest sum of |q k| come along.
  Numbers probabilities(std::int64_t b, std::int64_t h, std::int64_t t, double& lse,
                        double& magnitude) const {
    Numbers p(static_cast<std::size_t>(c.keys));
    double top = -1e300, sum = 0;
    for (std::int64_t s = 0; s < c.keys; ++s) {
      if (!sees(b, t, s)) continue;
      double absolute = 0;
      p[static_cast<std::size_t>(s)] = capped(score(b, h, t, s, &absolute));
      top = std::max(top, p[static_cast<std::size_t>(s)]);
      magnitude = std::max(magnitude, absolute);
    }
    for (std::int64_t s = 0; s < c.keys; ++s) {
      double& x = p[static_cast<std::size_t>(s)];
      sum += x = sees(b, t, s) ? std::exp(x - top) : 0;
    }
    for (double& x : p) x /= sum;
    lse = top + std::log(sum);
    return p;
  }
  double factor(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s) const {
    return dropout_factor(dropout, b, (h * c.keys + c.first_token() + t) * c.keys + s);
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
inline Numbers absolute_outputs(Reference r) {
  for (double& x : r.v) x = std::abs(x);
  return r.forward(nullptr, nullptr);
}

struct Inputs {
  Tensor q, k, v, samples, documents;
  Reference reference;

  View document_view() const { return reference.document.empty() ? View() : documents.view(); }
};
/// Fills a (B, S, 2) table, and says which document each token is in.
inline std::vector<std::int64_t> fill_documents(const std::vector<std::int64_t>& lengths,
                                                Tensor& table) {
  std::vector<std::int64_t> document;
  for (std::int64_t b = 0; b < table.view().extent(0) && !lengths.empty(); ++b) {
    std::vector<std::int64_t> own = lengths;
    if (b % 2 == 1) std::reverse(own.begin(), own.end());
    std::int64_t begin = 0;
    for (const std::int64_t length : own) {
      for (std::int64_t t = begin; t < begin + length; ++t) {
        const std::int64_t row = b * table.view().extent(1) + t;
        table.set(2 * row, static_cast<double>(begin));
        table.set(2 * row + 1, static_cast<double>(begin + length));
        document.push_back(begin);
      }
      begin += length;
    }
  }
  return document;
}
inline Inputs make_inputs(const Case& c, DType type) {
  Inputs in{.q = Tensor::random(type, {c.samples, c.queries, c.heads * c.dim}, 1, 1, c.gap),
            .k = Tensor::random(type, {c.samples, c.keys, c.kv_heads * c.dim}, 2, 1, c.gap),
            .v = Tensor::random(type, {c.samples, c.keys, c.kv_heads * c.dim}, 3, 1, c.gap),
            .samples = Tensor(DType::i64, {c.samples}),
            .documents = Tensor(DType::i32, {c.samples, c.keys, 2}),
            .reference = {}};
  for (std::int64_t b = 0; b < c.samples; ++b) in.samples.set(b, static_cast<double>(1000 + 7 * b));
  in.reference = {.c = c,
                  .shape = {.heads = c.heads,
                            .kv_heads = c.kv_heads,
                            .head_dim = c.dim,
                            .scale = 1.0F / std::sqrt(static_cast<float>(c.dim)),
                            .mask = c.mask,
                            .window = c.window,
                            .soft_cap = c.soft_cap,
                            .group = c.group,
                            .skip = c.skip},
                  .dropout = {.p = c.dropout, .seed = 5, .site = 2, .samples = in.samples.view()},
                  .q = in.q.numbers(),
                  .k = in.k.numbers(),
                  .v = in.v.numbers(),
                  .document = fill_documents(c.lengths, in.documents)};
  return in;
}

inline Attention call_of(const Inputs& in, const Tensor& out, const Tensor& lse) {
  return {.q = in.q.view(),
          .k = in.k.view(),
          .v = in.v.view(),
          .out = out.view(),
          .lse = lse.view(),
          .documents = in.document_view(),
          .shape = in.reference.shape,
          .dropout = in.reference.dropout,
          .first = in.reference.c.first};
}

/// The backward of call_of(in, out, lse).
inline AttentionBackward backward_of(const Inputs& in, const Tensor& out, const Tensor& lse,
                                     const Tensor& d_out, const Tensor& d_q, const Tensor& d_k,
                                     const Tensor& d_v) {
  return {.q = in.q.view(),
          .k = in.k.view(),
          .v = in.v.view(),
          .out = out.view(),
          .lse = lse.view(),
          .documents = in.document_view(),
          .d_out = d_out.view(),
          .d_q = d_q.view(),
          .d_k = d_k.view(),
          .d_v = d_v.view(),
          .shape = in.reference.shape,
          .dropout = in.reference.dropout,
          .first = in.reference.c.first};
}

/// Outputs and lse in double, and what they may err by before they are written.
struct Outputs {
  Numbers out, lse, absolute;  // absolute: of the sums over keys, with absolute values for v
  double relative = 0;         // of exponentials and their sums
  std::function<double(std::size_t)> out_error, lse_error;
};
inline Outputs outputs_of(const Reference& reference, const ScoreRounding& rounding) {
  const Case& c = reference.c;
  Outputs o;
  double magnitude = 0;
  o.out = reference.forward(&o.lse, &magnitude);
  o.absolute = absolute_outputs(reference);
  // A score's error (score_error) becomes relative through e^x, beside 2 ulp of its own and
  // rounding of score - max; sums over keys add (S + 1) u; rescaling by a new maximum adds
  // about 4 u a tile. Numerator and denominator both: twice. A GPU's e^x is 2^(x log2 e), 4 u
  // of its own for 16-bit types, within what 8 u allow here.
  const double u = 0x1p-24;
  const double score = reference.score_error() * magnitude;
  const auto keys = static_cast<double>(c.keys);
  const double relative = 2 * (2 * score + (keys + 8 + keys / 16) * u);
  const double largest_v = largest(reference.v),
               mean = largest_v / (1 - static_cast<double>(c.dropout));
  o.relative = relative;
  o.out_error = [=, absolute = o.absolute](std::size_t j) {
    // Probabilities are at most 1 and their sum at least 1 when they are rounded.
    return relative * mean + rounding.relative * absolute[j] + rounding.absolute * keys * largest_v;
  };
  o.lse_error = [=, lse = o.lse](std::size_t j) { return relative + 4 * u * std::abs(lse[j]); };
  return o;
}

/// Runs a case and compares the outputs with doubles.
inline void expect_outputs(Device& device, DType type, const ScoreRounding& rounding,
                           const Case& c) {
  const Inputs in = make_inputs(c, type);
  Tensor out(type, {c.samples, c.queries, c.heads * c.dim}, c.gap);
  Tensor lse(DType::f32, {c.samples, c.heads, c.queries});
  run(device, call_of(in, out, lse));
  const Outputs want = outputs_of(in.reference, rounding);
  expect_within(
      out, want.out,
      [&](std::int64_t i) {
        const auto j = static_cast<std::size_t>(i);
        const double error = want.out_error(j);
        return error + write_error(type, std::abs(want.out[j]) + error);
      },
      "out");
  expect_within(
      lse, want.lse, [&](std::int64_t i) { return want.lse_error(static_cast<std::size_t>(i)); },
      "lse");
}

/// Gradients in double, each with its bound.
struct Gradients {
  Numbers q, k, v, q_bound, k_bound, v_bound;
};

inline Gradients backward(const Reference& r, const Numbers& d_out, DType type,
                          const ScoreRounding& rounding) {
  const Case& c = r.c;
  const Numbers out = r.forward(nullptr, nullptr), absolute = absolute_outputs(r);
  const double u = 0x1p-24;
  Gradients g;
  g.q.resize(r.q.size()), g.k.resize(r.k.size()), g.v.resize(r.v.size());
  g.q_bound = g.q, g.k_bound = g.k, g.v_bound = g.v;
  const std::int64_t group = c.group > 0 ? c.group : c.heads / c.kv_heads;
  const double sums = static_cast<double>(c.keys * group + c.dim + 40) * u,
               largest_v = largest(r.v);
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
                          rounding.absolute * static_cast<double>(c.keys) * largest_v);
        }
        const double p_error = 4 * (r.score_error() * magnitude +
                                    static_cast<double>(c.keys + 10) * u + 4 * u * std::abs(lse));
        for (std::size_t i = 0; i < p.size(); ++i) {
          const auto s = static_cast<std::int64_t>(i);
          if (!r.sees(b, t, s)) continue;
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
          // The slope of a cap is off by 8 u, and moves by twice what tanh's argument is off by.
          double slope = 1;
          r.capped(r.score(b, h, t, s), &slope);
          const double slope_error =
              r.shape.soft_cap == 0 ? 0
                                    : 8 * u + 2 * r.score_error() * magnitude / r.shape.soft_cap;
          const double d_s = p[i] * (d_p - delta) * slope;
          const double exact_d_s_error = p[i] * (d_p_error + delta_error) +
                                         p_error * std::abs(d_s) + sums * std::abs(d_s) +
                                         p[i] * std::abs(d_p - delta) * slope_error;
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

/// Runs a case, then its backward, and compares the gradients with doubles. Of queries from a given
/// token on, gradients of keys and values are f32, and added to others.
inline void expect_gradients(Device& device, DType type, const ScoreRounding& rounding,
                             const Case& c) {
  const Inputs in = make_inputs(c, type);
  Tensor out(type, {c.samples, c.queries, c.heads * c.dim}, c.gap);
  Tensor lse(DType::f32, {c.samples, c.heads, c.queries});
  run(device, call_of(in, out, lse));
  const auto d_out = Tensor::random(type, {c.samples, c.queries, c.heads * c.dim}, 9, 1, c.gap);
  Gradients want = backward(in.reference, d_out.numbers(), type, rounding);
  const DType of_keys = c.first < 0 ? type : DType::f32;
  const auto bounded = [&](const Numbers& bound, const Numbers& value, DType written) {
    return [&, written](std::int64_t i) {
      const auto j = static_cast<std::size_t>(i);
      return bound[j] + write_error(written, std::abs(value[j]) + bound[j]);
    };
  };
  const auto keys = [&](unsigned seed) {
    return Tensor::random(of_keys, {c.samples, c.keys, c.kv_heads * c.dim}, seed, 1, c.gap);
  };
  if (c.first >= 0) {
    const Numbers k = keys(10).numbers(), v = keys(11).numbers();
    for (std::size_t i = 0; i < k.size(); ++i) want.k[i] += k[i], want.v[i] += v[i];
  }
  for (const SumOrder order : orders()) {
    Tensor d_q(type, {c.samples, c.queries, c.heads * c.dim}, c.gap);
    const Tensor d_k = keys(10), d_v = keys(11);
    AttentionBackward call = backward_of(in, out, lse, d_out, d_q, d_k, d_v);
    call.order = order;
    if (c.first >= 0) call.write = Write::add;
    run(device, call);
    expect_within(d_q, want.q, bounded(want.q_bound, want.q, type), "d_q");
    expect_within(d_k, want.k, bounded(want.k_bound, want.k, of_keys), "d_k");
    expect_within(d_v, want.v, bounded(want.v_bound, want.v, of_keys), "d_v");
  }
}

}  // namespace tessera::kernels::test::attention
