// Magnitudes of a matrix's rows beside low-rank adapters (Liu et al. 2024, DoRA): lengths of rows,
// and products by columns that are scaled with them.
#pragma once

#include "kernels/api/access.hpp"

namespace tessera::kernels {

/// out[n] = the sum over columns of (weight + scale update)^2, in f32, in an order that columns
/// alone decide.
struct RowSquares {
  static constexpr const char* kName = "row_squares";
  View weight;  // (N, K) f32, bf16 or f16
  View update;  // (N, K) f32
  float scale = 1;
  View out;  // (N) f32
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.weight, Access::read), f(s.update, Access::read), f(s.out, Access::write),
        f(s.scratch, Access::write);
  }
  bool operator==(const RowSquares&) const = default;
};

/// out = x times magnitude / sqrt(squares) + bias, by columns, rounded once. Columns whose squares
/// are 0, and all where there is no magnitude, are not scaled.
struct ScaleColumns {
  static constexpr const char* kName = "scale_columns";
  View x;          // (..., C) f32, or of out's type
  View magnitude;  // (C) f32, or absent
  View squares;    // (C) f32, with a magnitude
  View bias;       // (C), or absent
  View out;        // (..., C) f32, bf16 or f16
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.magnitude, Access::read), f(s.squares, Access::read);
    f(s.bias, Access::read), f(s.out, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const ScaleColumns&) const = default;
};

/// out (+)= the sum over rows of d_y x / sqrt(squares), by columns, in f32, in an order that rows
/// alone decide: the gradient of ScaleColumns' magnitude from that of its out. 0 where squares are.
struct MagnitudeBackward {
  static constexpr const char* kName = "magnitude_wgrad";
  View d_y;      // (..., C)
  View x;        // (..., C), of the same type
  View squares;  // (C) f32
  View out;      // (C) f32, bf16 or f16
  Write write = Write::overwrite;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.d_y, Access::read), f(s.x, Access::read), f(s.squares, Access::read);
    f(s.out, access_of(s.write)), f(s.scratch, Access::write);
  }
  bool operator==(const MagnitudeBackward&) const = default;
};

}  // namespace tessera::kernels
