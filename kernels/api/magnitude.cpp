#include "kernels/api/magnitude.hpp"

#include "kernels/api/checks.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels {

void check(const RowSquares& a) {
  check_floats({a.weight});
  TESSERA_CHECK(a.update.type == DType::f32, "an update of {}", to_string(a.update.type));
  check_same_matrix({a.weight, a.update});
  check_flat({a.out}, DType::f32, a.weight.rows());
}

void check(const ScaleColumns& a) {
  check_floats({a.x, a.magnitude, a.bias, a.out});
  TESSERA_CHECK(a.x.type == DType::f32 || a.x.type == a.out.type, "{} to {}", to_string(a.x.type),
                to_string(a.out.type));
  check_same_matrix({a.x, a.out});
  TESSERA_CHECK(a.magnitude || a.bias, "neither magnitudes nor biases");
  if (a.magnitude) check_flat({a.magnitude, a.squares}, DType::f32, a.x.cols());
  if (a.bias) check_flat({a.bias}, a.bias.type, a.x.cols());
}

void check(const MagnitudeBackward& a) {
  check_floats({a.d_y, a.out});
  check_same_type({a.d_y, a.x});
  check_same_matrix({a.d_y, a.x});
  check_flat({a.squares}, DType::f32, a.x.cols());
  check_flat({a.out}, a.out.type, a.x.cols());
}

}  // namespace tessera::kernels
