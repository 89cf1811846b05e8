// Mixtures of experts on a GPU: checks arguments, launches the kernels.
#include "kernels/cuda/experts.cuh"

#include <algorithm>

#include "kernels/common/types.hpp"
#include "kernels/cuda/expert_product.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {
namespace {

RouteRows rows_of_router(const View& logits, const View& stats, const View& experts,
                         std::int64_t samples, const Routing& routing) {
  return {.logits = rows_of<const float>(logits),
          .bias = nullptr,
          .d_weights = nullptr,
          .counts = nullptr,
          .scale = nullptr,
          .experts = experts.as<std::int32_t>(),
          .weights = nullptr,
          .stats = stats.as<float>(),
          .tokens = logits.rows(),
          .tokens_per_sample = logits.rows() / samples,
          .experts_of_all = static_cast<int>(logits.cols()),
          .terms = {},
          .routing = routing};
}

/// f.operator()<T, O>() with the types of operands and of what is made of them.
template <typename F>
void with_types(DType operands, DType result, F&& f) {
  with_type(operands, [&]<typename T>() {
    if (result == operands) {
      f.template operator()<T, T>();
    } else {
      f.template operator()<T, float>();
    }
  });
}

float* floats_of(const View& v) { return v ? v.as<float>() : nullptr; }

/// Copies of tokens and their rows are counted in 32 bits.
constexpr std::int64_t kMostCopies = 0x7fffffff;

enum class Fill : std::uint8_t { zero = 0, minus_one = 0xff };  // in every byte

void fill_words(const char* operation, std::int32_t* words, Fill with, std::int64_t count,
                const Context& context) {
  check_cuda(
      cudaMemsetAsync(words, static_cast<int>(with),
                      static_cast<std::size_t>(count * size_of(DType::i32)), context.queue.stream),
      operation);
}

}  // namespace

void run(const JoinGates& a, const Context& context) {
  const std::int64_t tokens = a.logits.rows();
  launch(on(context, a.kName, ceil_div(tokens, kRouteThreads), kRouteThreads), join_gates_kernel,
         rows_of<const float>(a.logits), rows_of<float>(a.joined), tokens, a.joined.cols(),
         a.routing);
}

void run(const JoinGatesBackward& a, const Context& context) {
  const std::int64_t tokens = a.joined.rows();
  with_type(a.d_logits.type, [&]<typename T>() {
    launch(on(context, a.kName, ceil_div(tokens, kRouteThreads), kRouteThreads),
           separate_gates_kernel<T>, rows_of<const float>(a.joined),
           rows_of<const float>(a.d_joined), rows_of<T>(a.d_logits), tokens, a.joined.cols(),
           a.routing);
  });
}

void run(const Route& a, const Context& context) {
  RouteRows rows = rows_of_router(a.logits, a.stats, a.experts, 1, a.routing);
  rows.bias = floats_of(a.bias);
  rows.weights = a.weights.as<float>();
  launch(on(context, a.kName, ceil_div(rows.tokens, kRouteWarps), kRouteThreads), route_kernel,
         rows);
}

void run(const RouteBackward& a, const Context& context) {
  const bool balance = a.terms.balance > 0;
  const std::int64_t samples = balance ? a.counts.rows() : 1;
  RouteRows rows = rows_of_router(a.logits, a.stats, a.experts, samples, a.routing);
  rows.d_weights = a.d_weights.as<float>();
  rows.counts = balance ? a.counts.as<float>() : nullptr;
  rows.scale = floats_of(a.scale);
  rows.terms = a.terms;
  with_type(a.d_logits.type, [&]<typename T>() {
    launch(on(context, a.kName, ceil_div(rows.tokens, kRouteWarps), kRouteThreads),
           route_backward_kernel<T>, rows, rows_of<T>(a.d_logits));
  });
}

void run(const ExpertLoad& a, const Context& context) {
  const std::int64_t samples = a.counts.rows();
  const RouteRows rows = rows_of_router(a.logits, a.stats, a.experts, samples, a.routing);
  launch(on(context, a.kName, samples * ceil_div(a.logits.cols(), kLoadExperts), kLoadThreads),
         expert_load_kernel, rows, rows_of<float>(a.counts), rows_of<float>(a.shares));
}

void run(const CountChoices& a, const Context& context) {
  const std::int64_t choices = a.experts.elements(), experts = a.counts.elements();
  TESSERA_CHECK(choices <= kMostCopies, "{} choices", choices);
  ChoiceCounts to{.counts = a.counts.as<std::int64_t>(),
                  .dropped = nullptr,
                  .here = nullptr,
                  .capacity = a.capacity,
                  .experts = static_cast<int>(experts)};
  if (a.dropped) {
    to.dropped = a.dropped.as<std::int64_t>();
    to.here = reinterpret_cast<std::int32_t*>(a.scratch.data);
    fill_words(a.kName, to.here, Fill::zero, experts, context);
  }
  launch(on(context, a.kName, ceil_div(choices, kCountedByBlock), kCountThreads),
         count_choices_kernel, a.experts.as<std::int32_t>(), choices, to);
}

void run(const BalanceExperts& a, const Context& context) {
  launch(on(context, a.kName, 1, kCountThreads), balance_experts_kernel,
         a.choices.as<std::int64_t>(), static_cast<int>(a.kept.elements()), a.kept.as<float>(),
         a.verdict.as<float>(), a.by, a.rate);
}

void run(const Dispatch& a, const Context& context) {
  const std::int64_t own = a.own(), copies = a.experts.elements(), rows = a.source.elements();
  const std::int64_t most = a.capacity == 0 ? copies : std::min(a.capacity, copies);
  TESSERA_CHECK(copies <= kMostCopies && rows <= kMostCopies, "{} copies, {} rows", copies, rows);
  const PlaceSort sort(copies, own);
  const Places sorted = sort_places(a.kName, a.scratch, sort, rows_of_experts(a), context);
  auto* behind_sort = reinterpret_cast<std::int32_t*>(a.scratch.data + sort.bytes());
  const ExpertRuns runs{.begins = behind_sort,
                        .ends = behind_sort + own,
                        .experts = static_cast<std::int32_t>(own),
                        .most = static_cast<std::int32_t>(most),
                        .rows = static_cast<std::int32_t>(rows / a.parts),
                        .of_part = static_cast<std::int32_t>(own / a.parts)};
  fill_words(a.kName, runs.begins, Fill::zero, 2 * own, context);
  fill_words(a.kName, a.source.as<std::int32_t>(), Fill::minus_one, rows, context);
  const std::int64_t blocks = ceil_div(copies, kRunThreads);
  launch(on(context, a.kName, blocks, kRunThreads), expert_runs_kernel, sorted.rows, copies, runs);
  launch(on(context, a.kName, 1, 1), expert_begins_kernel, runs, a.begins.as<std::int32_t>());
  launch(on(context, a.kName, blocks, kRunThreads), place_copies_kernel, sorted, copies, runs,
         a.begins.as<std::int32_t>(), a.place.as<std::int32_t>(), a.source.as<std::int32_t>());
}

void run(const PartsOfChoices& a, const Context& context) {
  const std::int64_t tokens = a.experts.rows();
  launch(on(context, a.kName, ceil_div(tokens, kPartThreads), kPartThreads),
         parts_of_choices_kernel, a.experts.as<std::int32_t>(),
         a.place ? a.place.as<std::int32_t>() : nullptr, tokens, a.experts.cols(), a.first,
         a.of_part, a.count, a.parts.as<std::int32_t>(), a.own.as<std::int32_t>());
}

namespace {

template <typename W>
void copy_rows(const SpreadRows& a, const Context& context) {
  const auto words = [&](const View& v) {
    const std::int64_t of_row = v.rank <= 1 ? 0 : v.ld * size_of(v.type);
    return Rows<W>{reinterpret_cast<W*>(v.data), of_row / static_cast<std::int64_t>(sizeof(W))};
  };
  const CopyRun<W> body{.x = words(a.x),
                        .rows = words(a.rows),
                        .source = a.source.as<std::int32_t>(),
                        .choices = a.choices};
  map<CopyRun<W>::V>(context, a.kName, body, a.rows.rows(),
                     a.rows.cols() * size_of(a.x.type) / static_cast<std::int64_t>(sizeof(W)));
}

/// Whether rows begin on multiples of so many bytes, and have so many.
bool in_words(const SpreadRows& a, std::int64_t bytes) {
  const std::int64_t size = size_of(a.x.type);
  const auto fits = [&](const View& v) {
    return reinterpret_cast<std::uintptr_t>(v.data) % static_cast<std::uintptr_t>(bytes) == 0 &&
           (v.rank <= 1 || v.ld * size % bytes == 0);
  };
  return fits(a.x) && fits(a.rows) && a.x.cols() * size % bytes == 0;
}

}  // namespace

void run(const SpreadRows& a, const Context& context) {
  if (!a.weights) {
    if (in_words(a, 16)) return copy_rows<uint4>(a, context);
    if (in_words(a, 4)) return copy_rows<std::uint32_t>(a, context);
    return copy_rows<std::uint8_t>(a, context);
  }
  with_type(a.x.type, [&]<typename T>() {
    using Run = SpreadRun<T>;
    const Run body{.x = rows_of<T>(a.x),
                   .rows = rows_of<T>(a.rows),
                   .weights = floats_of(a.weights),
                   .source = a.source.as<std::int32_t>(),
                   .choices = a.choices,
                   .wide = wide<Run::V>({a.x, a.rows})};
    map<Run::V>(context, a.kName, body, a.rows.rows(), a.rows.cols());
  });
}

void run(const CombineRows& a, const Context& context) {
  with_types(a.rows.type, a.out.type, [&]<typename T, typename O>() {
    using Run = CombineRun<T, O>;
    const Run body{.rows = rows_of<T>(a.rows),
                   .out = rows_of<O>(a.out),
                   .weights = floats_of(a.weights),
                   .place = a.place.as<std::int32_t>(),
                   .choices = a.place.cols(),
                   .wide = wide<Run::V>({a.rows, a.out})};
    map<Run::V>(context, a.kName, body, a.out.rows(), a.out.cols());
  });
}

void run(const RowDots& a, const Context& context) {
  with_type(a.x.type, [&]<typename T>() {
    const std::int64_t copies = a.place.elements();
    launch(on(context, a.kName, ceil_div(copies, kDotWarps), kDotThreads), row_dots_kernel<T>,
           rows_of<T>(a.x), rows_of<T>(a.rows), a.place.as<std::int32_t>(), copies, a.place.cols(),
           a.x.cols(), wide<kRun<T>>({a.x, a.rows}), a.dots.as<float>());
  });
}

namespace {

/// Rows of a view as products take them; `rows` of each expert, where they have their own.
template <typename T>
HeadMatrix<T> operand_of(const View& v, std::int64_t rows) {
  const View m = v.matrix();
  return {reinterpret_cast<T*>(m.data), m.ld, static_cast<int>(rows), static_cast<int>(m.cols()),
          m.cols() % kVector<T> == 0 && wide<kVector<T>>({m})};
}

/// Results of the rows of `x` with each expert's own matrix, of `weight_rows` rows.
template <SumAlong kB, typename T, typename O>
void multiply_rows(const char* operation, const View& x, const View& weight, const View& begins,
                   const View& result, const Context& context) {
  const std::int64_t experts = begins.elements() - 1;
  const ExpertProduct<T, O> p{.a = operand_of<const T>(x, x.rows()),
                              .b = operand_of<const T>(weight, weight.rows() / experts),
                              .result = operand_of<O>(result, result.rows()),
                              .begins = begins.as<std::int32_t>(),
                              .experts = static_cast<int>(experts),
                              .column_tiles = ceil_div(result.cols(), kProductTile),
                              .add = false};
  launch_large(on(context, operation, ceil_div(x.rows(), kProductTile) * p.column_tiles,
                  kProductThreads, kProductBytes<T, SumAlong::columns, kB>),
               expert_rows_kernel<T, O, kB>, p);
}

}  // namespace

void run(const ExpertLinear& a, const Context& context) {
  check_no_codes(a);
  with_types(a.x.type, a.y.type, [&]<typename T, typename O>() {
    multiply_rows<SumAlong::columns, T, O>(a.kName, a.x, a.weight, a.begins, a.y, context);
  });
}

void run(const ExpertLinearBackwardInput& a, const Context& context) {
  with_types(a.d_y.type, a.d_x.type, [&]<typename T, typename O>() {
    multiply_rows<SumAlong::rows, T, O>(a.kName, a.d_y, a.weight, a.begins, a.d_x, context);
  });
}

void run(const ExpertLinearBackwardWeight& a, const Context& context) {
  with_types(a.x.type, a.d_weight.type, [&]<typename T, typename O>() {
    const std::int64_t experts = a.begins.elements() - 1, rows = a.d_weight.rows() / experts;
    const ExpertProduct<T, O> p{.a = operand_of<const T>(a.d_y, a.d_y.rows()),
                                .b = operand_of<const T>(a.x, a.x.rows()),
                                .result = operand_of<O>(a.d_weight, rows),
                                .begins = a.begins.as<std::int32_t>(),
                                .experts = static_cast<int>(experts),
                                .column_tiles = ceil_div(a.d_weight.cols(), kProductTile),
                                .add = a.write == Write::add};
    launch_large(on(context, a.kName, experts * ceil_div(rows, kProductTile) * p.column_tiles,
                    kProductThreads, kProductBytes<T, SumAlong::rows, SumAlong::rows>),
                 expert_sums_kernel<T, O>, p);
  });
}

}  // namespace tessera::kernels::cuda
