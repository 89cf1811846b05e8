// Elementwise operations: body(row, column, count) for every run of V neighbouring columns of a
// matrix, on as many threads as fill the device.
#pragma once

#include <algorithm>

#include "core/math.hpp"
#include "kernels/cuda/context.hpp"
#include "kernels/cuda/launch.hpp"

namespace tessera::kernels::cuda {

inline constexpr int kMapThreads = 256;

template <int V, typename Body>
__global__ void __launch_bounds__(kMapThreads)
    map_kernel(Body body, std::int64_t rows, std::int64_t columns) {
  const std::int64_t runs = ceil_div(columns, V), total = rows * runs;
  const bool narrow = total <= 0xffffffff;  // 32-bit division is several times as fast
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kMapThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kMapThreads + threadIdx.x;
       i < total; i += stride) {
    const std::int64_t row =
        narrow ? static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(runs) : i / runs;
    const std::int64_t column = (i - row * runs) * V, left = columns - column;
    body(row, column, left < V ? static_cast<int>(left) : V);
  }
}

template <int V, typename Body>
void map(const Context& context, const char* operation, const Body& body, std::int64_t rows,
         std::int64_t columns) {
  constexpr std::int64_t kBlocksAtOnce = 8;  // 2048 threads a multiprocessor
  const std::int64_t blocks = std::min(ceil_div(rows * ceil_div(columns, V), kMapThreads),
                                       4 * kBlocksAtOnce * context.multiprocessors);
  launch(on(context, operation, blocks, kMapThreads), map_kernel<V, Body>, body, rows, columns);
}

}  // namespace tessera::kernels::cuda
