// Magnitudes of rows on the CPU: checks arguments, divides rows or columns over the team.
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {

void run(const RowSquares& a, const Context& context) {
  parallel_ranges(context.threads, a.weight.rows(), 1,
                  [&](Range rows) { context.hot.row_squares(a, rows); });
}

void run(const ScaleColumns& a, const Context& context) {
  parallel_ranges(context.threads, a.x.rows(), 1,
                  [&](Range rows) { context.hot.scale_columns(a, rows); });
}

void run(const MagnitudeBackward& a, const Context& context) {
  parallel_ranges(context.threads, a.x.cols(), 64,
                  [&](Range columns) { context.hot.magnitude_backward(a, columns); });
}

}  // namespace tessera::kernels::cpu
