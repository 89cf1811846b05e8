// Activations on a GPU: checks arguments, launches the kernels.
#include "kernels/cuda/activation.cuh"

#include "kernels/common/types.hpp"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {
namespace {

struct Gelu {
  static __device__ __forceinline__ float value(float x) { return gelu(x); }
  static __device__ __forceinline__ float slope(float x) { return gelu_slope(x); }
};
struct GeluErf {
  static __device__ __forceinline__ float value(float x) { return gelu_erf(x); }
  static __device__ __forceinline__ float slope(float x) { return gelu_erf_slope(x); }
};
struct Silu {
  static __device__ __forceinline__ float value(float x) { return silu(x); }
  static __device__ __forceinline__ float slope(float x) { return silu_slope(x); }
};
struct Relu {
  static __device__ __forceinline__ float value(float x) { return relu(x); }
  static __device__ __forceinline__ float slope(float x) { return relu_slope(x); }
};
struct Tanh {
  static __device__ __forceinline__ float value(float x) { return tanh_of(x); }
  static __device__ __forceinline__ float slope(float x) { return tanh_slope_at(x); }
};

template <typename T, typename F>
void run_as(const Activate& a, const Context& context) {
  using Run = ActivateRun<T, F>;
  const Run body{rows_of<T>(a.x), rows_of<T>(a.y), wide<Run::V>({a.x, a.y})};
  map<Run::V>(context, a.kName, body, a.y.rows(), a.y.cols());
}

template <typename T, typename F>
void run_as(const ActivateBackward& a, const Context& context) {
  using Run = ActivateBackwardRun<T, F>;
  const Run body{rows_of<T>(a.x), rows_of<T>(a.d_y), rows_of<T>(a.d_x),
                 wide<Run::V>({a.x, a.d_y, a.d_x})};
  map<Run::V>(context, a.kName, body, a.d_y.rows(), a.d_y.cols());
}

template <typename T, typename F>
void run_gated(const Activate& a, const Context& context) {
  using Run = GatedRun<T, F>;
  const View gate = a.x.col_range(0, a.y.cols()), up = a.x.col_range(a.y.cols(), a.y.cols());
  const Run body{rows_of<T>(gate), rows_of<T>(up), rows_of<T>(a.y), wide<Run::V>({gate, up, a.y})};
  map<Run::V>(context, a.kName, body, a.y.rows(), a.y.cols());
}

template <typename T, typename F>
void run_gated(const ActivateBackward& a, const Context& context) {
  using Run = GatedBackwardRun<T, F>;
  const std::int64_t columns = a.d_y.cols();
  const View gate = a.x.col_range(0, columns), up = a.x.col_range(columns, columns);
  const View d_gate = a.d_x.col_range(0, columns), d_up = a.d_x.col_range(columns, columns);
  const Run body{rows_of<T>(gate),  rows_of<T>(up),
                 rows_of<T>(a.d_y), rows_of<T>(d_gate),
                 rows_of<T>(d_up),  wide<Run::V>({gate, up, a.d_y, d_gate, d_up})};
  map<Run::V>(context, a.kName, body, a.d_y.rows(), columns);
}

template <typename Operation>
void run_kind(const Operation& a, const Context& context) {
  with_type(a.x.type, [&]<typename T>() {
    switch (a.kind) {
      case ActivationKind::gelu: run_as<T, Gelu>(a, context); break;
      case ActivationKind::gelu_erf: run_as<T, GeluErf>(a, context); break;
      case ActivationKind::relu: run_as<T, Relu>(a, context); break;
      case ActivationKind::tanh: run_as<T, Tanh>(a, context); break;
      case ActivationKind::swiglu: run_gated<T, Silu>(a, context); break;
      case ActivationKind::geglu: run_gated<T, Gelu>(a, context); break;
    }
  });
}

}  // namespace

void run(const Activate& a, const Context& context) { run_kind(a, context); }
void run(const ActivateBackward& a, const Context& context) { run_kind(a, context); }

}  // namespace tessera::kernels::cuda
