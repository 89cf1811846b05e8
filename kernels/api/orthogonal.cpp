#include "kernels/api/orthogonal.hpp"

#include "kernels/api/checks.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels {

void check(const DivideByNorm& a) {
  check_floats({a.x, a.out});
  check_flat({a.x}, a.x.type, a.x.elements());
  check_flat({a.out}, a.out.type, a.x.elements());
  check_flat({a.squares}, DType::i64, kExactSumWords);
}

void check(const SquarePolynomial& a) {
  check_floats({a.x, a.square, a.out});
  check_same_type({a.x, a.square, a.out});
  for (const View* v : {&a.x, &a.square, &a.out}) {
    TESSERA_CHECK(v->rank == 2 && v->dense() && v->rows() == a.x.cols() && v->cols() == a.x.cols(),
                  "a polynomial of matrices ({}, {}) beside ({}, {})", v->rows(), v->cols(),
                  a.x.rows(), a.x.cols());
  }
}

}  // namespace tessera::kernels
