// The emulator's versions of kernels/cuda/ptx.hpp's functions.
#pragma once

#include <cuda_runtime.h>

#include "core/dtype.hpp"

namespace tessera::kernels::cuda {

template <typename T>
inline std::uint32_t pack(float low, float high) {
  return T(low).bits | static_cast<std::uint32_t>(T(high).bits) << 16;
}

template <typename T>
inline float widen(std::uint16_t bits) {
  T x;
  x.bits = bits;
  return static_cast<float>(x);
}

template <typename T>
inline T* dynamic_shared() {
  return reinterpret_cast<T*>(emulator::dynamic_shared());
}

}  // namespace tessera::kernels::cuda
