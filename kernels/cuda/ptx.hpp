// What kernels need that CUDA C++ has no word for, behind plain functions: the only place with
// inline PTX, and with declarations that no other compiler understands. Tests have their own.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/dtype.hpp"

namespace tessera::kernels::cuda {

/// Two numbers rounded to nearest even, the first in the lower half. NaN becomes the canonical one.
template <typename T>
__device__ __forceinline__ std::uint32_t pack(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t pack<bf16>(float low, float high) {
  std::uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
template <>
__device__ __forceinline__ std::uint32_t pack<f16>(float low, float high) {
  std::uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

/// The number of these 16 bits, exactly.
template <typename T>
__device__ __forceinline__ float widen(std::uint16_t bits);
template <>
__device__ __forceinline__ float widen<bf16>(std::uint16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}
template <>
__device__ __forceinline__ float widen<f16>(std::uint16_t bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}

/// The block's dynamic shared memory, aligned to 128 bytes.
template <typename T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(128) std::byte tessera_dynamic_shared[];
  return reinterpret_cast<T*>(tessera_dynamic_shared);
}

}  // namespace tessera::kernels::cuda
