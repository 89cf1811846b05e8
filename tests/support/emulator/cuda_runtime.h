// Stands in for CUDA's header of this name where g++ compiles kernels for the emulator: as much of
// the language and of the runtime library as the product uses. Device memory is host memory.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cuda_runtime_api.h"
#include "emulator.hpp"
#include "support/emulator/streams.hpp"

#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local  // blocks run one after another
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
constexpr uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
constexpr uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
constexpr int2 make_int2(int x, int y) { return {x, y}; }
constexpr int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
constexpr float2 make_float2(float x, float y) { return {x, y}; }
constexpr float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline constexpr int warpSize = tessera::emulator::kWarp;

// Barriers and warp-wide operations.
inline void __syncthreads() { tessera::emulator::sync_block(); }
inline void __syncwarp(unsigned mask = 0xffffffffU) { tessera::emulator::exchange(mask, char{}); }

namespace tessera::emulator {
/// The lane that a shuffle reads: `lane` of each `width` lanes.
template <typename T>
T shuffle(unsigned mask, const T& value, int source) {
  const auto all = exchange(mask, value);
  return all[static_cast<std::size_t>(source)];
}
inline int first_of(int width) { return lane() & ~(width - 1); }
}  // namespace tessera::emulator

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize) {
  return tessera::emulator::shuffle(mask, value,
                                    tessera::emulator::first_of(width) + (source & (width - 1)));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = warpSize) {
  const int lane = tessera::emulator::lane(), source = lane ^ lanes;
  const bool within = source < tessera::emulator::first_of(width) + width;
  return tessera::emulator::shuffle(mask, value, within ? source : lane);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = warpSize) {
  const int lane = tessera::emulator::lane(), source = lane + static_cast<int>(lanes);
  const bool within = source < tessera::emulator::first_of(width) + width;
  return tessera::emulator::shuffle(mask, value, within ? source : lane);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = warpSize) {
  const int lane = tessera::emulator::lane(), source = lane - static_cast<int>(lanes);
  const bool within = source >= tessera::emulator::first_of(width);
  return tessera::emulator::shuffle(mask, value, within ? source : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const auto all = tessera::emulator::exchange(mask, predicate != 0);
  unsigned lanes = 0;
  for (unsigned i = 0; i < 32; ++i) lanes |= (mask >> i & 1U) != 0 && all[i] ? 1U << i : 0U;
  return lanes;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value) {
  const auto all = tessera::emulator::exchange(mask, value);
  unsigned lanes = 0;
  for (unsigned i = 0; i < 32; ++i)
    lanes |= (mask >> i & 1U) != 0 && all[i] == value ? 1U << i : 0U;
  return lanes;
}
template <typename T>
T __reduce_max_sync(unsigned mask, T value) {
  const auto all = tessera::emulator::exchange(mask, value);
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1U) != 0 && value < all[i]) value = all[i];
  }
  return value;
}

// Bits and read-only loads.
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
/// Byte i is the one of `low`, then `high`, that hexadecimal digit i of `which` names.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned which) {
  const std::uint64_t both = static_cast<std::uint64_t>(high) << 32 | low;
  unsigned bytes = 0;
  for (unsigned i = 0; i < 4; ++i)
    bytes |= static_cast<unsigned>(both >> (which >> 4 * i & 7U) * 8 & 0xffU) << 8 * i;
  return bytes;
}
template <typename T>
T __ldg(const T* p) {
  return *p;
}

// Integer atomics return the old value.
template <typename T>
T atomicAdd(T* p, std::type_identity_t<T> x) {
  static_assert(std::is_integral_v<T>, "sums of floats must not depend on order");
  const T old = *p;
  *p = static_cast<T>(old + x);
  return old;
}
template <typename T>
T atomicMax(T* p, std::type_identity_t<T> x) {
  static_assert(std::is_integral_v<T>);
  const T old = *p;
  *p = old < x ? x : old;
  return old;
}
template <typename T>
T atomicMin(T* p, std::type_identity_t<T> x) {
  static_assert(std::is_integral_v<T>);
  const T old = *p;
  *p = x < old ? x : old;
  return old;
}

/// Runs the whole grid.
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const auto* function = reinterpret_cast<const void*>(kernel);
  if (config->dynamicSmemBytes > tessera::emulator::shared_limit(function))
    return cudaErrorInvalidValue;
  const auto extent = [](const dim3& d) { return tessera::emulator::Extent{d.x, d.y, d.z}; };
  const std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  return tessera::emulator::queue_work(
      config->stream, [=, name = __PRETTY_FUNCTION__, grid = extent(config->gridDim),
                       block = extent(config->blockDim), bytes = config->dynamicSmemBytes] {
        tessera::emulator::run_grid(name, grid, block, bytes, [&] { std::apply(kernel, values); });
      });
}
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
