// Rotary positions on a GPU: checks arguments, launches the kernels.
#include "kernels/cuda/rope.cuh"

#include "kernels/common/types.hpp"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {

void run(const Rope& a, const Context& context) {
  check(a);
  const Turns turns = turns_of(a);
  const std::int64_t half = turns.dim / 2, heads = a.x.cols() / a.head_dim,
                     runs = turn_runs(turns.first, turns.tokens);
  auto* table = reinterpret_cast<float*>(a.scratch.data);
  launch(on(context, a.kName, ceil_div(runs * half, kTurnThreads), kTurnThreads), turns_kernel,
         turns, runs, table);
  with_type(a.x.type, [&]<typename T>() {
    using Run = RopeRun<T>;
    const View rows(a.scratch.data, DType::f32, {turns.tokens, turns.dim});
    View x = a.x;
    x.data += a.first_column * size_of(x.type);
    const Run body{
        .x = rows_of<T>(x),
        .turns = table,
        .documents = reinterpret_cast<const std::int32_t*>(a.documents.data),
        .heads = heads,
        .head_dim = a.head_dim,
        .half = half,
        .tokens = a.x.extent(1),
        .sign = a.direction == Rope::Direction::forward ? 1.0F : -1.0F,
        .neighbours = a.pairs == RopePairs::neighbours,
        .wide = half % Run::V == 0 && a.head_dim % Run::V == 0 && wide<Run::V>({x, rows})};
    map<Run::V>(context, a.kName, body, a.x.rows() * heads, half);
  });
}

}  // namespace tessera::kernels::cuda
