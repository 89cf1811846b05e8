// Rotary positions on a GPU: checks arguments, launches the kernels.
#include "kernels/cuda/rope.cuh"

#include "kernels/common/types.hpp"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {

void run(const Rope& a, const Context& context) {
  check(a);
  const std::int64_t tokens = a.x.extent(1), half = a.head_dim / 2, heads = a.x.cols() / a.head_dim,
                     runs = turn_runs(a.first_position, tokens);
  auto* turns = reinterpret_cast<float*>(a.scratch.data);
  launch(on(context, a.kName, ceil_div(runs * half, kTurnThreads), kTurnThreads), turns_kernel,
         Turns{a.theta, a.head_dim, a.first_position, tokens}, runs, turns);
  with_type(a.x.type, [&]<typename T>() {
    using Run = RopeRun<T>;
    const View table(a.scratch.data, DType::f32, {tokens, a.head_dim});
    const Run body{.x = rows_of<T>(a.x),
                   .turns = turns,
                   .heads = heads,
                   .half = half,
                   .tokens = tokens,
                   .sign = a.direction == Rope::Direction::forward ? 1.0F : -1.0F,
                   .wide = half % Run::V == 0 && wide<Run::V>({a.x, table})};
    map<Run::V>(context, a.kName, body, a.x.rows() * heads, half);
  });
}

}  // namespace tessera::kernels::cuda
