// What makes a matrix orthogonal, beside products: the steps of a Newton-Schulz iteration.
#pragma once

#include <array>

#include "core/exact_sum.hpp"
#include "kernels/api/access.hpp"

namespace tessera::kernels {

/// out = x / max(norm, eps), with the norm by the exact sum of its squares.
struct DivideByNorm {
  static constexpr const char* kName = "divide_by_norm";
  View x;        // (n) f32, bf16 or f16
  View squares;  // (kExactSumWords) i64, as ExactSum leaves it
  View out;      // (n) of any of these types; may be x
  float eps = 1e-7F;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.squares, Access::read), f(s.out, Access::write),
        f(s.scratch, Access::write);
  }
  bool operator==(const DivideByNorm&) const = default;
};

/// out = c0 I + c1 x + c2 x^2, of square matrices, in f32 and rounded once.
struct SquarePolynomial {
  static constexpr const char* kName = "square_polynomial";
  View x;       // (n, n) f32, bf16 or f16, dense
  View square;  // (n, n) x^2, of x's type
  View out;     // (n, n) of x's type; may be x or its square
  std::array<float, 3> coefficients{};
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.square, Access::read), f(s.out, Access::write),
        f(s.scratch, Access::write);
  }
  bool operator==(const SquarePolynomial&) const = default;
};

}  // namespace tessera::kernels
