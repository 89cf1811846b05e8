// Activations of the feed-forward layer.
#pragma once

#include "core/choices.hpp"
#include "kernels/api/access.hpp"

namespace tessera::kernels {

/// y = f(x). Of a gated kind x is (..., 2 F), [gate | up], and y is (..., F).
struct Activate {
  static constexpr const char* kName = "activation";
  View x;
  View y;
  ActivationKind kind = ActivationKind::gelu;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.y, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const Activate&) const = default;
};

/// d_x = f'(x) d_y; d_x may be the same memory as x, and of a kind without gate as d_y.
struct ActivateBackward {
  static constexpr const char* kName = "activation_backward";
  View x;
  View d_y;
  View d_x;
  ActivationKind kind = ActivationKind::gelu;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.d_y, Access::read), f(s.d_x, Access::write),
        f(s.scratch, Access::write);
  }
  bool operator==(const ActivateBackward&) const = default;
};

}  // namespace tessera::kernels
