// What makes a matrix orthogonal, beside products.
#pragma once

#include "kernels/common/verdict.hpp"
#include "kernels/cuda/vec.cuh"

namespace tessera::kernels::cuda {

inline constexpr int kScaleThreads = 256;

template <typename T, typename G>
__global__ void __launch_bounds__(kScaleThreads)
    divide_by_norm_kernel(const T* x, const std::int64_t* squares, float eps, G* out,
                          std::int64_t n, bool wide) {
  constexpr int V = kRun<T, G>;
  __shared__ std::int64_t near[kExactSumWords];
  __shared__ float factor;
  if (threadIdx.x < kExactSumWords) near[threadIdx.x] = squares[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) factor = inverse_norm(near, eps);
  __syncthreads();
  const std::int64_t stride = std::int64_t{gridDim.x} * kScaleThreads * V;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * kScaleThreads + threadIdx.x) * V; i < n;
       i += stride) {
    const int count = n - i < V ? static_cast<int>(n - i) : V;
    float v[V];
    load(x + i, count, wide, v);
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = v[j] * factor;
    store(out + i, count, wide, v);
  }
}

template <typename T>
struct SquarePolynomialRun {
  static constexpr int V = kRun<T, T>;
  const T *x, *square;
  T* out;
  std::int64_t n;
  float c0, c1, c2;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float v[V], s[V];
    load(x + r * n + c, count, wide, v);
    load(square + r * n + c, count, wide, s);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      v[j] = fmadd(s[j], c2, v[j] * c1);
      if (c + j == r) v[j] = v[j] + c0;
    }
    store(out + r * n + c, count, wide, v);
  }
};

}  // namespace tessera::kernels::cuda
