// Activations of the feed-forward layer.
#pragma once

#include "core/enums.hpp"
#include "kernels/api/access.hpp"

namespace tessera::kernels {

/// gelu is the tanh form (Hendrycks and Gimpel 2016); swiglu(x) = silu(gate) * up (Shazeer 2020).
enum class ActivationKind : std::uint8_t { gelu, relu, swiglu };

/// y = f(x). For swiglu x is (..., 2 F), [gate | up], and y is (..., F).
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
};

/// d_x = f'(x) d_y; d_x may be the same memory as x, and for gelu and relu as d_y.
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
};

}  // namespace tessera::kernels

template <>
struct tessera::EnumWords<tessera::kernels::ActivationKind> {
  static constexpr std::array table = {
      std::pair{tessera::kernels::ActivationKind::gelu, "gelu"},
      std::pair{tessera::kernels::ActivationKind::relu, "relu"},
      std::pair{tessera::kernels::ActivationKind::swiglu, "swiglu"}};
};
