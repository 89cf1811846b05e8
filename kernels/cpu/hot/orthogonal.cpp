// Loops of what makes a matrix orthogonal, beside products.
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {

void scale(const View& x, float factor, const View& out, Range rows) {
  const std::int64_t columns = columns_of(x);
  with_type(x.type, [&]<typename T>() {
    with_type(out.type, [&]<typename G>() {
      for (std::int64_t r = rows.begin; r < rows.end; ++r) {
        const T* from = row_of<T>(x, r);
        G* to = row_of<G>(out, r);
        for_vectors(
            columns, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
              store(to + i, load(from + i, count) * Vec(factor), count);
            });
      }
    });
  });
}

void square_polynomial(const SquarePolynomial& a, Range rows) {
  const std::int64_t n = columns_of(a.x);
  const Vec of_x(a.coefficients[1]), of_square(a.coefficients[2]);
  with_type(a.x.type, [&]<typename T>() {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      const T *x = row_of<T>(a.x, r), *square = row_of<T>(a.square, r);
      T* out = row_of<T>(a.out, r);
      // Of the diagonal's element, as its vector would be computed: before `out` takes its place.
      const Vec diagonal =
          fmadd(load(square + r, 1), of_square, load(x + r, 1) * of_x) + Vec(a.coefficients[0]);
      for_vectors(
          n, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
            store(out + i, fmadd(load(square + i, count), of_square, load(x + i, count) * of_x),
                  count);
          });
      store(out + r, diagonal, 1);
    }
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
