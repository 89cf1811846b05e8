// Rotary positions on a GPU: checks arguments, launches the kernels.
#include "kernels/cuda/rope.cuh"

#include "kernels/common/types.hpp"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {
namespace {

TurnTables tables_of(const Rope& a) {
  const Turns turns = turns_of(a);
  // Where a sample's positions begin is in the table: at worst at the end of a run.
  const std::int64_t first = a.cached ? kTurnStride - 1 : turns.first;
  return {.turns = turns,
          .scaling = a.scaling,
          .cached = reinterpret_cast<const CachedSample*>(a.cached.data),
          .count = a.tables(),
          .runs = turn_runs(first, turns.tokens),
          .data = reinterpret_cast<float*>(a.scratch.data)};
}

}  // namespace

void run(const Rope& a, const Context& context) {
  const TurnTables tables = tables_of(a);
  const std::int64_t half = a.turned() / 2, heads = a.x.cols() / a.head_dim;
  launch(
      on(context, a.kName, ceil_div(tables.count * tables.runs * half, kTurnThreads), kTurnThreads),
      turns_kernel, tables);
  with_type(a.x.type, [&]<typename T>() {
    using Run = RopeRun<T>;
    const View rows(a.scratch.data, DType::f32, {tables.count * a.positions(), a.turned()});
    View x = a.x;
    x.data += a.first_column * size_of(x.type);
    const Run body{
        .x = rows_of<T>(x),
        .turns = tables.data,
        .documents = reinterpret_cast<const std::int32_t*>(a.documents.data),
        .heads = heads,
        .head_dim = a.head_dim,
        .half = half,
        .tokens = a.x.extent(1),
        .sign = a.direction == Rope::Direction::forward ? 1.0F : -1.0F,
        .own_turns = tables.cached != nullptr,
        .neighbours = a.pairs == RopePairs::neighbours,
        .wide = half % Run::V == 0 && a.head_dim % Run::V == 0 && wide<Run::V>({x, rows})};
    map<Run::V>(context, a.kName, body, a.x.rows() * heads, half);
  });
}

}  // namespace tessera::kernels::cuda
