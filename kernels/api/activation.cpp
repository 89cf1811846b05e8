#include "kernels/api/activation.hpp"

#include "kernels/api/checks.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels {
namespace {

void check_halves(const View& x, const View& y, ActivationKind kind) {
  const std::int64_t parts = gated(kind) ? 2 : 1;
  TESSERA_CHECK(x.rows() == y.rows() && x.cols() == parts * y.cols(), "{} of ({}, {}) in ({}, {})",
                enum_word(kind), x.rows(), x.cols(), y.rows(), y.cols());
}

}  // namespace

void check(const Activate& a) {
  check_floats({a.x});
  check_same_type({a.x, a.y});
  check_halves(a.x, a.y, a.kind);
}

void check(const ActivateBackward& a) {
  check_floats({a.x});
  check_same_type({a.x, a.d_y, a.d_x});
  check_same_matrix({a.x, a.d_x});
  check_halves(a.x, a.d_y, a.kind);
}

}  // namespace tessera::kernels
