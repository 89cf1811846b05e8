// What makes a matrix orthogonal, beside products, on a GPU: checks arguments, launches the
// kernels.
#include "kernels/cuda/orthogonal.cuh"

#include "kernels/common/types.hpp"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {

void run(const DivideByNorm& a, const Context& context) {
  const std::int64_t n = a.x.elements();
  with_type(a.x.type, [&]<typename T>() {
    with_type(a.out.type, [&]<typename G>() {
      constexpr int V = kRun<T, G>;
      const View x = a.x.range(0, n), out = a.out.range(0, n);
      launch(on(context, a.kName,
                std::min<std::int64_t>(ceil_div(ceil_div(n, V), kScaleThreads),
                                       32 * context.multiprocessors),
                kScaleThreads),
             divide_by_norm_kernel<T, G>, x.as<T>(), a.squares.as<std::int64_t>(), a.eps,
             out.as<G>(), n, wide<V>({x, out}));
    });
  });
}

void run(const SquarePolynomial& a, const Context& context) {
  with_type(a.x.type, [&]<typename T>() {
    using Run = SquarePolynomialRun<T>;
    const Run body{a.x.as<T>(),       a.square.as<T>(),
                   a.out.as<T>(),     a.x.cols(),
                   a.coefficients[0], a.coefficients[1],
                   a.coefficients[2], wide<Run::V>({a.x, a.square, a.out})};
    map<Run::V>(context, a.kName, body, a.x.rows(), a.x.cols());
  });
}

}  // namespace tessera::kernels::cuda
