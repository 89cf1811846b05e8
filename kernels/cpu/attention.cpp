// Attention on the CPU: checks arguments, divides heads over the team.
#include "kernels/cpu/cached.hpp"
#include "kernels/cpu/documents.hpp"
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

std::int64_t float_bytes(std::int64_t floats) { return floats * size_of(DType::f32); }

}  // namespace

std::int64_t scratch_bytes(const Attention& a, const Context& context) {
  return float_bytes(context.threads * attention_scratch(a.shape, a.q.type));
}

void run(const Attention& a, const Context& context) {
  check_document_rows(a.documents, sequence_of(a));
  check_cached_rows(a.cached, a.q.extent(1), a.pages, a.k);
  const std::int64_t samples = a.q.extent(0), queries = a.q.extent(1);
  const DropoutRule rule = dropout_rule(a.dropout);
  const std::int64_t chunks = ceil_div(queries, kQueryChunk);
  auto* scratch = reinterpret_cast<float*>(a.scratch.data);
  const std::int64_t units = samples * a.shape.heads * chunks;
  parallel_units(context.threads, units, [&](std::int64_t i, int thread) {
    const std::int64_t chunk = chunks - 1 - i / (samples * a.shape.heads);  // the longest first
    const std::int64_t head = i % (samples * a.shape.heads);
    const Range t = intersect({chunk * kQueryChunk, (chunk + 1) * kQueryChunk}, {0, queries});
    context.hot.attention(a, rule, {head / a.shape.heads, head % a.shape.heads, t},
                          scratch + thread * attention_scratch(a.shape, a.q.type));
  });
}

std::int64_t scratch_bytes(const AttentionBackward& a, const Context& context) {
  return float_bytes(context.threads *
                     attention_backward_scratch(a.shape, a.q.type, a.q.extent(1), a.k.extent(1)));
}

void run(const AttentionBackward& a, const Context& context) {
  check_document_rows(a.documents, sequence_of(a));
  const std::int64_t samples = a.q.extent(0), own = attention_backward_scratch(
                                                  a.shape, a.q.type, a.q.extent(1), a.k.extent(1));
  const DropoutRule rule = dropout_rule(a.dropout);
  auto* scratch = reinterpret_cast<float*>(a.scratch.data);
  parallel_units(context.threads, samples * a.shape.kv_heads, [&](std::int64_t i, int thread) {
    context.hot.attention_backward(a, rule, {i / a.shape.kv_heads, i % a.shape.kv_heads},
                                   scratch + thread * own);
  });
}

void run(const MergeAttention& a, const Context& context) {
  parallel_ranges(context.threads, a.out.rows(), 1,
                  [&](Range rows) { context.hot.merge_attention(a, rows); });
}

}  // namespace tessera::kernels::cpu
