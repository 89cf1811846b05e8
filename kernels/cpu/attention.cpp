#include "kernels/common/checks.hpp"
#include "kernels/common/contracts.hpp"
#include "kernels/common/rope.hpp"
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

void check_heads(const AttentionShape& s, const View& q, const View& k, const View& v) {
  TESSERA_CHECK(s.heads > 0 && s.kv_heads > 0 && s.head_dim > 0 && s.skip >= 0 &&
                    (s.group > 0 || (s.group == 0 && s.heads % s.kv_heads == 0)) &&
                    s.kv_head_of(s.heads - 1) < s.kv_heads,
                "{} heads of {} columns in groups of {} after {}, {} kv heads", s.heads, s.head_dim,
                s.group, s.skip, s.kv_heads);
  check_floats({q});
  check_same_matrix({k, v});
  TESSERA_CHECK(q.rank == 3 && k.rank == 3 && q.extent(0) == k.extent(0) &&
                    q.extent(1) <= k.extent(1) && q.cols() == s.heads * s.head_dim &&
                    k.cols() == s.kv_heads * s.head_dim,
                "queries ({}, {}, {}), keys ({}, {}, {}) for {} heads, {} kv heads of {}",
                q.extent(0), q.extent(1), q.extent(2), k.extent(0), k.extent(1), k.extent(2),
                s.heads, s.kv_heads, s.head_dim);
}

std::int64_t float_bytes(std::int64_t floats) { return floats * size_of(DType::f32); }

}  // namespace

std::int64_t scratch_bytes(const Attention& a, const Context& context) {
  return float_bytes(context.threads * attention_scratch(a.shape));
}

void run(const Attention& a, const Context& context) {
  check_heads(a.shape, a.q, a.k, a.v);
  check_same_type({a.q, a.k, a.v, a.out});
  check_same_matrix({a.q, a.out});
  const std::int64_t samples = a.q.extent(0), queries = a.q.extent(1);
  if (a.lse) check_flat({a.lse}, DType::f32, samples * a.shape.heads * queries);
  check_dropout(a.dropout, samples);
  const DropoutRule rule = dropout_rule(a.dropout);
  const std::int64_t chunks = ceil_div(queries, kQueryChunk);
  auto* scratch = reinterpret_cast<float*>(a.scratch.data);
  const std::int64_t units = samples * a.shape.heads * chunks;
  parallel_units(context.threads, units, [&](std::int64_t i, int thread) {
    const std::int64_t chunk = chunks - 1 - i / (samples * a.shape.heads);  // the longest first
    const std::int64_t head = i % (samples * a.shape.heads);
    const Range t = intersect({chunk * kQueryChunk, (chunk + 1) * kQueryChunk}, {0, queries});
    context.hot.attention(a, rule, {head / a.shape.heads, head % a.shape.heads, t},
                          scratch + thread * attention_scratch(a.shape));
  });
}

std::int64_t scratch_bytes(const AttentionBackward& a, const Context& context) {
  return float_bytes(context.threads * attention_backward_scratch(a.shape, a.q.extent(1)));
}

void run(const AttentionBackward& a, const Context& context) {
  check_heads(a.shape, a.q, a.k, a.v);
  check_same_type({a.q, a.k, a.v, a.out, a.d_out, a.d_q, a.d_k, a.d_v});
  check_same_matrix({a.q, a.out, a.d_out, a.d_q});
  check_same_matrix({a.k, a.v, a.d_k, a.d_v});
  const std::int64_t samples = a.q.extent(0), tokens = a.q.extent(1);
  TESSERA_CHECK(a.k.extent(1) == tokens, "{} queries, {} keys", tokens, a.k.extent(1));
  check_flat({a.lse}, DType::f32, samples * a.shape.heads * tokens);
  check_dropout(a.dropout, samples);
  const DropoutRule rule = dropout_rule(a.dropout);
  auto* scratch = reinterpret_cast<float*>(a.scratch.data);
  parallel_units(context.threads, samples * a.shape.kv_heads, [&](std::int64_t i, int thread) {
    context.hot.attention_backward(a, rule, {i / a.shape.kv_heads, i % a.shape.kv_heads},
                                   scratch + thread * attention_backward_scratch(a.shape, tokens));
  });
}

std::int64_t scratch_bytes(const Rope& a, const Context&) {
  return float_bytes(a.x.extent(1) * a.head_dim);
}

void run(const Rope& a, const Context& context) {
  check(a);
  auto* turns = reinterpret_cast<float*>(a.scratch.data);
  parallel_ranges(context.threads, turn_runs(a.first_position, a.x.extent(1)), 1, [&](Range runs) {
    for (std::int64_t i = 0; i < a.head_dim / 2; ++i) {
      for (std::int64_t run = runs.begin; run < runs.end; ++run) {
        turn_run({a.theta, a.head_dim, a.first_position, a.x.extent(1)}, run, i, turns);
      }
    }
  });
  parallel_ranges(context.threads, a.x.rows(), 1,
                  [&](Range rows) { context.hot.rope(a, turns, rows); });
}

}  // namespace tessera::kernels::cpu
