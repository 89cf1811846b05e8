#include <algorithm>

#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/shapes.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

// Rows whose weight gradients are added up together: a function of the number of rows alone, so
// that threads do not change the order of the sum.
constexpr std::int64_t kMaxChunks = 64, kMinChunkRows = 16;
std::int64_t chunk_count(std::int64_t rows) {
  return std::min(kMaxChunks, ceil_div(rows, kMinChunkRows));
}

}  // namespace

void run(const AddNorm& a, const Context& context) {
  check_floats({a.resid});
  check_same_type({a.resid, a.pending, a.weight, a.bias, a.sum, a.out});
  check_same_matrix({a.resid, a.pending, a.sum, a.out});
  check_same_matrix({a.weight, a.bias});
  TESSERA_CHECK(static_cast<bool>(a.sum) == static_cast<bool>(a.pending),
                "a sum is written when there is something pending, and only then");
  check_flat({a.weight}, a.resid.type, a.resid.cols());
  check_flat({a.stats}, DType::f32, 2 * a.resid.rows());
  if (a.pending) check_dropout(a.dropout, a.pending.extent(0));
  const DropoutRule rule = dropout_rule(a.dropout);
  AddNorm b = a;
  b.stats = a.stats.reshaped({a.resid.rows(), 2});
  parallel_ranges(context.threads, a.resid.rows(), 1,
                  [&](Range rows) { context.hot.add_norm(b, rule, rows); });
}

std::int64_t scratch_bytes(const NormBackward& a, const Context&) {
  return 2 * chunk_count(a.sum.rows()) * a.sum.cols() * size_of(DType::f32);
}

void run(const NormBackward& a, const Context& context) {
  check_floats({a.sum, a.d_weight, a.d_bias});
  check_same_type({a.sum, a.d_out, a.d_resid, a.weight, a.d_sum});
  check_same_matrix({a.sum, a.d_out, a.d_resid, a.d_sum});
  check_same_matrix({a.weight, a.d_weight, a.d_bias});
  check_flat({a.weight}, a.sum.type, a.sum.cols());
  check_flat({a.stats}, DType::f32, 2 * a.sum.rows());
  const std::int64_t rows = a.sum.rows(), columns = a.sum.cols(), chunks = chunk_count(rows);
  NormBackward b = a;
  b.stats = a.stats.reshaped({rows, 2});
  const View weights(a.scratch.data, DType::f32, {chunks, columns});
  const View biases(a.scratch.data + chunks * columns * size_of(DType::f32), DType::f32,
                    {chunks, columns});
  parallel_ranges(context.threads, chunks, 1, [&](Range part) {
    for (std::int64_t i = part.begin; i < part.end; ++i) {
      context.hot.norm_backward(b, even_part(rows, i, chunks), weights.as<float>() + i * columns,
                                a.d_bias ? biases.as<float>() + i * columns : nullptr);
    }
  });
  parallel_ranges(context.threads, columns, 64, [&](Range part) {
    context.hot.sum_rows(weights, a.d_weight, a.write, part);
    if (a.d_bias) context.hot.sum_rows(biases, a.d_bias, a.write, part);
  });
}

void run(const ApplyDropout& a, const Context& context) {
  check_floats({a.x});
  check_same_type({a.x, a.out});
  check_same_matrix({a.x, a.out});
  check_flat({a.dropout.samples}, DType::i64, a.x.extent(0));
  const DropoutRule rule = dropout_rule(a.dropout);
  parallel_ranges(context.threads, a.x.rows(), 1,
                  [&](Range rows) { context.hot.apply_dropout(a, rule, rows); });
}

}  // namespace tessera::kernels::cpu
