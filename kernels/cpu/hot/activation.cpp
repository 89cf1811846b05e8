// Loops of activations and their gradients.
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

template <typename T, typename F>
void map_rows(const View& x, const View& y, Range rows, F f) {
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const T* from = row_of<T>(x, r);
    T* to = row_of<T>(y, r);
    for_groups(
        columns_of(y),
        [&](std::int64_t i)
            __attribute__((always_inline)) { store_all(to + i, f(load_all(from + i))); },
        [&](std::int64_t i, std::int64_t count)
            __attribute__((always_inline)) { store(to + i, f(load(from + i, count)), count); });
  }
}

template <typename T, typename F>
void map_rows(const View& x, const View& d_y, const View& d_x, Range rows, F f) {
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const T* from = row_of<T>(x, r);
    const T* d = row_of<T>(d_y, r);
    T* to = row_of<T>(d_x, r);
    for_groups(
        columns_of(d_x),
        [&](std::int64_t i) __attribute__((always_inline)) {
          store_all(to + i, load_all(d + i) * f(load_all(from + i)));
        },
        [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
          store(to + i, load(d + i, count) * f(load(from + i, count)), count);
        });
  }
}

/// y = f(gate) up.
template <typename T, typename F>
void gated_rows(const Activate& a, Range rows, F f) {
  const std::int64_t columns = columns_of(a.y);
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const T* gate = row_of<T>(a.x, r);
    const T* up = gate + columns;
    T* y = row_of<T>(a.y, r);
    for_vectors(
        columns, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
          store(y + i, f(load(gate + i, count)) * load(up + i, count), count);
        });
  }
}

template <typename T, typename F, typename Slope>
void gated_backward_rows(const ActivateBackward& a, Range rows, F f, Slope slope) {
  const std::int64_t columns = columns_of(a.d_y);
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const T* gate = row_of<T>(a.x, r);
    const T* up = gate + columns;
    const T* d_y = row_of<T>(a.d_y, r);
    T* d_gate = row_of<T>(a.d_x, r);
    T* d_up = d_gate + columns;
    for_vectors(
        columns, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
          const Vec g = load(gate + i, count), u = load(up + i, count), d = load(d_y + i, count);
          store(d_gate + i, d * u * slope(g), count);
          store(d_up + i, d * f(g), count);
        });
  }
}

}  // namespace

void activate(const Activate& a, Range rows) {
  with_type(a.x.type, [&]<typename T>() {
    switch (a.kind) {
      case ActivationKind::gelu:
        map_rows<T>(a.x, a.y, rows, [](const auto& x) { return gelu(x); });
        break;
      case ActivationKind::gelu_erf:
        map_rows<T>(a.x, a.y, rows, [](const auto& x) { return gelu_erf(x); });
        break;
      case ActivationKind::relu:
        map_rows<T>(a.x, a.y, rows, [](const auto& x) { return relu(x); });
        break;
      case ActivationKind::tanh:
        map_rows<T>(a.x, a.y, rows, [](const auto& x) { return tanh_of(x); });
        break;
      case ActivationKind::swiglu:
        gated_rows<T>(a, rows, [](const auto& x) { return silu(x); });
        break;
      case ActivationKind::geglu:
        gated_rows<T>(a, rows, [](const auto& x) { return gelu(x); });
        break;
    }
  });
}

void activate_backward(const ActivateBackward& a, Range rows) {
  with_type(a.x.type, [&]<typename T>() {
    switch (a.kind) {
      case ActivationKind::gelu:
        map_rows<T>(a.x, a.d_y, a.d_x, rows, [](const auto& x) { return gelu_slope(x); });
        break;
      case ActivationKind::gelu_erf:
        map_rows<T>(a.x, a.d_y, a.d_x, rows, [](const auto& x) { return gelu_erf_slope(x); });
        break;
      case ActivationKind::relu:
        map_rows<T>(a.x, a.d_y, a.d_x, rows, [](const auto& x) { return relu_slope(x); });
        break;
      case ActivationKind::tanh:
        map_rows<T>(a.x, a.d_y, a.d_x, rows, [](const auto& x) { return tanh_slope_at(x); });
        break;
      case ActivationKind::swiglu:
        gated_backward_rows<T>(
            a, rows, [](const auto& x) { return silu(x); },
            [](const auto& x) { return silu_slope(x); });
        break;
      case ActivationKind::geglu:
        gated_backward_rows<T>(
            a, rows, [](const auto& x) { return gelu(x); },
            [](const auto& x) { return gelu_slope(x); });
        break;
    }
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
