// From a view's element type to a C++ type.
#pragma once

#include "core/dtype.hpp"

namespace tessera::kernels {

/// `f.operator()<T>()` for the C++ type of a floating-point view.
template <typename F>
[[gnu::always_inline]] inline void with_type(DType type, F&& f) {
  switch (type) {
    case DType::bf16: f.template operator()<bf16>(); break;
    case DType::f16: f.template operator()<f16>(); break;
    default: f.template operator()<float>(); break;
  }
}

}  // namespace tessera::kernels
