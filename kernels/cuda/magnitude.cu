// Magnitudes of rows on a GPU: checks arguments, launches the kernels.
#include "kernels/cuda/magnitude.cuh"

#include "kernels/common/types.hpp"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {

void run(const RowSquares& a, const Context& context) {
  with_type(a.weight.type, [&]<typename T>() {
    using Run = RowSquaresRun<T>;
    with_team<Run::V, 4>(a.weight.cols(), [&]<int>(Team team) {
      const Run body{.weight = rows_of<T>(a.weight.matrix()),
                     .update = rows_of<float>(a.update.matrix()),
                     .scale = a.scale,
                     .out = a.out.as<float>(),
                     .rows = a.weight.rows(),
                     .columns = a.weight.cols(),
                     .wide = wide<Run::V>({a.weight, a.update}),
                     .team = team};
      launch(on(context, a.kName, ceil_div(body.rows, team.per_block()), team.block()),
             row_squares_kernel<T>, body);
    });
  });
}

namespace {

template <typename X, typename B, typename T>
void scale_columns(const ScaleColumns& a, const Context& context) {
  using Run = ScaleColumnsRun<X, B, T>;
  const Run body{rows_of<X>(a.x.matrix()),
                 reinterpret_cast<const float*>(a.magnitude.data),
                 reinterpret_cast<const float*>(a.squares.data),
                 reinterpret_cast<const B*>(a.bias.data),
                 rows_of<T>(a.out.matrix()),
                 wide<Run::V>({a.x, a.magnitude, a.bias, a.squares, a.out})};
  map<Run::V>(context, a.kName, body, a.x.rows(), a.x.cols());
}

}  // namespace

void run(const ScaleColumns& a, const Context& context) {
  with_type(a.out.type, [&]<typename T>() {
    with_type(a.bias ? a.bias.type : a.out.type, [&]<typename B>() {
      a.x.type == DType::f32 ? scale_columns<float, B, T>(a, context)
                             : scale_columns<T, B, T>(a, context);
    });
  });
}

void run(const MagnitudeBackward& a, const Context& context) {
  with_type(a.x.type, [&]<typename T>() {
    with_type(a.out.type, [&]<typename G>() {
      launch(on(context, a.kName, ceil_div(a.x.cols(), kMagnitudeColumns),
                kMagnitudeColumns * kMagnitudeRows),
             magnitude_backward_kernel<T, G>, rows_of<T>(a.d_y.matrix()), rows_of<T>(a.x.matrix()),
             a.squares.as<float>(), a.out.as<G>(), a.x.rows(), a.x.cols(), a.write == Write::add);
    });
  });
}

}  // namespace tessera::kernels::cuda
