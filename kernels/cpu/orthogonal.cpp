// What makes a matrix orthogonal, beside products, on the CPU: checks arguments, divides work over
// the team.
#include <algorithm>

#include "kernels/common/verdict.hpp"
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {

void run(const DivideByNorm& a, const Context& context) {
  std::int64_t squares[kExactSumWords];
  std::copy_n(a.squares.as<std::int64_t>(), kExactSumWords, squares);
  const float factor = inverse_norm(squares, a.eps);
  parallel_ranges(context.threads, a.x.elements(), 4096, [&](Range part) {
    context.hot.scale(a.x.range(part.begin, part.count()), factor,
                      a.out.range(part.begin, part.count()), {0, 1});
  });
}

void run(const SquarePolynomial& a, const Context& context) {
  parallel_ranges(context.threads, a.x.rows(), std::max<std::int64_t>(1, 4096 / a.x.cols()),
                  [&](Range rows) { context.hot.square_polynomial(a, rows); });
}

}  // namespace tessera::kernels::cpu
