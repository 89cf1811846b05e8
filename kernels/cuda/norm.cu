// Norms on a GPU: checks arguments, launches the kernels.
#include <algorithm>

#include "kernels/common/types.hpp"
#include "kernels/cuda/add_norm.cuh"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/norm_backward.cuh"
#include "kernels/cuda/operations.hpp"
#include "kernels/cuda/scratch.hpp"

namespace tessera::kernels::cuda {
namespace {

// Runs of a row that a thread keeps in registers, and how many where not even 512 threads have
// enough of them.
constexpr int kRuns = 1, kMostRuns = 2;

/// Whether every head begins where a wide access may.
template <int V>
bool columns_wide(std::int64_t columns, std::int64_t heads) {
  return heads == 1 || columns % V == 0;
}

template <typename T>
void add_norm(const AddNorm& a, const Context& context) {
  constexpr int V = kRun<T>;
  const std::int64_t rows = a.resid.rows(), columns = a.resid.cols() / a.heads;
  const bool all_wide = columns_wide<V>(columns, a.heads) &&
                        wide<V>({a.resid, a.pending, a.sum, a.out, a.weight, a.bias});
  AddNormRows<T> body{.addition = {rows_of<T>(a.resid), rows_of<T>(a.pending), rows_of<T>(a.sum),
                                   a.pending ? dropout_mask(a.dropout, a.pending.extent(1), columns)
                                             : DropoutMask{},
                                   all_wide},
                      .out = rows_of<T>(a.out),
                      .weight = rows_of<T>(a.weight),
                      .bias = rows_of<T>(a.bias),
                      .stats = a.stats.as<float>(),
                      .rows = rows,
                      .columns = columns,
                      .heads = static_cast<int>(a.heads),
                      .eps = a.eps,
                      .layernorm = a.kind == NormKind::layernorm};
  with_team<V, kRuns, kMostRuns>(columns, [&]<int kKept>(Team team) {
    constexpr std::int64_t kThreads = 1024;  // of a multiprocessor: each goes over several rows
    body.team = team;
    const std::int64_t blocks = std::min(ceil_div(rows, team.per_block()),
                                         context.multiprocessors * (kThreads / team.block()));
    launch(on(context, a.kName, blocks * a.heads, team.block()), add_norm_kernel<T, kKept>, body);
  });
}

template <typename T>
void norm_backward(const NormBackward& a, const NormPartials& sums, float* weights, float* biases,
                   const Context& context) {
  constexpr int V = kRun<T>;
  const std::int64_t tokens = a.sum.extent(1);
  NormBackwardRows<T> body{.d_out = rows_of<T>(a.d_out),
                           .d_resid = rows_of<T>(a.d_resid),
                           .sum = rows_of<T>(a.sum),
                           .weight = rows_of<T>(a.weight),
                           .d_sum = rows_of<T>(a.d_sum),
                           .stats = a.stats.as<float>(),
                           .weights = weights,
                           .biases = a.d_bias ? biases : nullptr,
                           .groups = a.groups,
                           .chunks = sums.chunks,
                           .group_rows = sums.group_rows,
                           .group_tokens = tokens / a.groups,
                           .tokens = tokens,
                           .columns = sums.columns,
                           .heads = static_cast<int>(sums.heads),
                           .layernorm = a.kind == NormKind::layernorm,
                           .wide = columns_wide<V>(sums.columns, sums.heads) &&
                                   wide<V>({a.d_out, a.d_resid, a.sum, a.weight, a.d_sum})};
  with_team<V, kRuns, kMostRuns>(sums.columns, [&]<int kKept>(Team team) {
    body.team = team;
    std::int64_t ahead = 0;
    if constexpr (kKept > 0) ahead = team.block() * RowRuns<T, kKept>::kSharedBytes;
    const std::int64_t totals = team.per_block() > 1 ? 2 * sums.columns * size_of(DType::f32) : 0;
    launch_large(
        on(context, a.kName, a.groups * sums.chunks * sums.heads, team.block(), ahead + totals),
        norm_backward_kernel<T, kKept>, body);
  });
}

/// The weights' gradients (+)= the chunks' sums, group by group; those of biases lie behind those
/// of weights.
void add_up(const NormBackward& a, const NormPartials& sums, const float* partial,
            const Context& context) {
  const std::int64_t matrices = a.groups * (a.d_bias ? 2 : 1);
  with_type(a.d_weight.type, [&]<typename G>() {
    launch(on(context, a.kName, matrices * ceil_div(sums.columns, kSumColumns),
              kSumColumns * kSumRows),
           column_sum_kernel<float, G>, partial, sums.chunks * sums.heads, sums.columns,
           ColumnSumsOut<G>{.first = reinterpret_cast<G*>(a.d_weight.data),
                            .others = reinterpret_cast<G*>(a.d_bias.data),
                            .split = a.groups},
           a.write == Write::add);
  });
}

}  // namespace

void run(const AddNorm& a, const Context& context) {
  with_type(a.resid.type, [&]<typename T>() { add_norm<T>(a, context); });
}

void run(const NormBackward& a, const Context& context) {
  const NormPartials sums(a);
  auto* weights = reinterpret_cast<float*>(a.scratch.data);
  float* biases = weights + sums.groups * sums.chunks * sums.heads * sums.columns;
  with_type(a.sum.type, [&]<typename T>() { norm_backward<T>(a, sums, weights, biases, context); });
  add_up(a, sums, weights, context);
}

void run(const AddPending& a, const Context& context) {
  with_type(a.resid.type, [&]<typename T>() {
    using Run = AddPendingRun<T>;
    const Run body{rows_of<T>(a.resid), rows_of<T>(a.pending), rows_of<T>(a.sum),
                   dropout_mask(a.dropout, a.pending.extent(1), a.sum.cols()),
                   wide<Run::V>({a.resid, a.pending, a.sum})};
    map<Run::V>(context, a.kName, body, a.sum.rows(), a.sum.cols());
  });
}

void run(const ApplyDropout& a, const Context& context) {
  const DropoutMask mask =
      dropout_mask(a.dropout, a.x.extent(1), a.columns > 0 ? a.columns : a.x.cols());
  with_type(a.x.type, [&]<typename T>() {
    const auto apply = [&](auto jitter) {
      using Run = ApplyDropoutRun<T, decltype(jitter)::value>;
      const Run body{rows_of<T>(a.x), rows_of<T>(a.out), mask, wide<Run::V>({a.x, a.out})};
      map<Run::V>(context, a.kName, body, a.x.rows(), a.x.cols());
    };
    a.dropout.jitter > 0 ? apply(std::true_type()) : apply(std::false_type());
  });
}

}  // namespace tessera::kernels::cuda
