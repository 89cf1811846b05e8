// Matrix products: y = x W^T + b and its two gradients. Weights are stored (out, in), as in
// torch.nn.Linear. Products accumulate in f32; y and d_x may be f32 whatever x and d_y are, as
// parts of a sum that is rounded once.
#pragma once

#include "kernels/api/access.hpp"

namespace tessera::kernels {

/// y = x W^T + b.
struct Linear {
  static constexpr const char* kName = "linear";
  View x;       // (..., K)
  View weight;  // (N, K)
  View bias;    // (N) or absent
  View y;       // (..., N)
  View scratch;

  double flop() const {
    return 2.0 * static_cast<double>(x.rows()) * static_cast<double>(weight.elements());
  }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.weight, Access::read), f(s.bias, Access::read), f(s.y, Access::write);
    f(s.scratch, Access::write);
  }
};

/// d_x = d_y W.
struct LinearBackwardInput {
  static constexpr const char* kName = "linear_dgrad";
  View d_y;     // (..., N)
  View weight;  // (N, K)
  View d_x;     // (..., K)
  View scratch;

  double flop() const {
    return 2.0 * static_cast<double>(d_y.rows()) * static_cast<double>(weight.elements());
  }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.d_y, Access::read), f(s.weight, Access::read), f(s.d_x, Access::write),
        f(s.scratch, Access::write);
  }
};

/// d_weight (+)= d_y^T x; d_bias (+)= sum of d_y over rows (in an order that does not depend on
/// threads).
struct LinearBackwardWeight {
  static constexpr const char* kName = "linear_wgrad";
  View d_y;       // (..., N)
  View x;         // (..., K)
  View d_weight;  // (N, K), accumulation type (f32 even when x is bf16)
  View d_bias;    // (N) or absent
  Write write = Write::overwrite;
  View scratch;

  double flop() const {
    return 2.0 * static_cast<double>(x.rows()) * static_cast<double>(d_weight.elements());
  }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.d_y, Access::read), f(s.x, Access::read), f(s.d_weight, access_of(s.write));
    f(s.d_bias, access_of(s.write)), f(s.scratch, Access::write);
  }
};

}  // namespace tessera::kernels
