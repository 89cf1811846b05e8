// Activations and their gradients.
#pragma once

#include "kernels/cuda/vec.cuh"

namespace tessera::kernels::cuda {

/// F::value(x) is the activation, F::slope(x) its derivative.
template <typename T, typename F>
struct ActivateRun {
  static constexpr int V = kRun<T>;
  Rows<T> x, y;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float v[V];
    load(x[r] + c, count, wide, v);
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] = F::value(v[i]);
    store(y[r] + c, count, wide, v);
  }
};

template <typename T, typename F>
struct ActivateBackwardRun {
  static constexpr int V = kRun<T>;
  Rows<T> x, d_y, d_x;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float v[V], d[V];
    load(x[r] + c, count, wide, v);
    load(d_y[r] + c, count, wide, d);
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] = d[i] * F::slope(v[i]);
    store(d_x[r] + c, count, wide, v);
  }
};

/// y = F::value(gate) up; `up` and `gate` are the halves of x.
template <typename T, typename F>
struct GatedRun {
  static constexpr int V = kRun<T>;
  Rows<T> gate, up, y;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float g[V], u[V];
    load(gate[r] + c, count, wide, g);
    load(up[r] + c, count, wide, u);
#pragma unroll
    for (int i = 0; i < V; ++i) g[i] = F::value(g[i]) * u[i];
    store(y[r] + c, count, wide, g);
  }
};

template <typename T, typename F>
struct GatedBackwardRun {
  static constexpr int V = kRun<T>;
  Rows<T> gate, up, d_y, d_gate, d_up;
  bool wide;

  __device__ __forceinline__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float g[V], u[V], d[V];
    load(gate[r] + c, count, wide, g);
    load(up[r] + c, count, wide, u);
    load(d_y[r] + c, count, wide, d);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      u[i] = d[i] * u[i] * F::slope(g[i]);
      d[i] = d[i] * F::value(g[i]);
    }
    store(d_gate[r] + c, count, wide, u);
    store(d_up[r] + c, count, wide, d);
  }
};

}  // namespace tessera::kernels::cuda
