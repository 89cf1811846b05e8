#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/shapes.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

void check_halves(const View& x, const View& y, ActivationKind kind) {
  const std::int64_t parts = kind == ActivationKind::swiglu ? 2 : 1;
  TESSERA_CHECK(x.rows() == y.rows() && x.cols() == parts * y.cols(), "{} of ({}, {}) in ({}, {})",
                enum_word(kind), x.rows(), x.cols(), y.rows(), y.cols());
}

}  // namespace

void run(const Activate& a, const Context& context) {
  check_floats({a.x});
  check_same_type({a.x, a.y});
  check_halves(a.x, a.y, a.kind);
  parallel_ranges(context.threads, a.x.rows(), 1,
                  [&](Range rows) { context.hot.activate(a, rows); });
}

void run(const ActivateBackward& a, const Context& context) {
  check_floats({a.x});
  check_same_type({a.x, a.d_y, a.d_x});
  check_same_matrix({a.x, a.d_x});
  check_halves(a.x, a.d_y, a.kind);
  parallel_ranges(context.threads, a.x.rows(), 1,
                  [&](Range rows) { context.hot.activate_backward(a, rows); });
}

}  // namespace tessera::kernels::cpu
