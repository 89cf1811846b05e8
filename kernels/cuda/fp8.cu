#include "kernels/cuda/fp8.hpp"

#include "kernels/common/types.hpp"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/map.cuh"

namespace tessera::kernels::cuda {
namespace {

/// Blocks that look for the largest magnitude, by the operand's size alone.
template <typename T>
std::int64_t magnitude_parts(const View& x) {
  return std::min(kFp8Parts, ceil_div(x.rows() * ceil_div(x.cols(), kRun<T>), kLargestThreads));
}

template <typename T, typename Format, bool kTurned>
void convert(const Fp8Operand& o, const char* operation, const Context& context) {
  const View x = o.x.matrix();
  const std::int64_t rows = x.extent(0), columns = x.extent(1);
  launch(
      on(context, operation, ceil_div(rows, kFp8Tile) * ceil_div(columns, kFp8Tile), kFp8Threads),
      to_fp8_kernel<T, Format, kTurned>, rows_of<const T>(x), rows, columns, wide<kFp8Run>({x}),
      reinterpret_cast<const std::uint32_t*>(o.magnitudes.data),
      static_cast<int>(magnitude_parts<T>(x)), reinterpret_cast<std::uint8_t*>(o.codes.data),
      o.scale.as<float>());
}

template <typename T>
void convert(const Fp8Operand& o, const char* operation, const Context& context) {
  const View x = o.x.matrix();
  launch(on(context, operation, magnitude_parts<T>(x), kLargestThreads),
         largest_magnitudes_kernel<T>, rows_of<const T>(x), x.extent(0), x.extent(1),
         wide<kRun<T>>({x}), reinterpret_cast<std::uint32_t*>(o.magnitudes.data));
  with_fp8(o.format, [&]<typename Format>() {
    o.turn == Turn::transpose ? convert<T, Format, true>(o, operation, context)
                              : convert<T, Format, false>(o, operation, context);
  });
}

}  // namespace

void convert_to_fp8(const Fp8Operand& o, const char* operation, const Context& context) {
  o.x.type == DType::f32 ? convert<float>(o, operation, context)
                         : convert<bf16>(o, operation, context);
}

void add_bias(const View& y, const View& bias, const char* operation, const Context& context) {
  with_type(y.type, [&]<typename T>() {
    with_type(bias.type, [&]<typename B>() {
      using Run = AddBiasRun<T, B>;
      const View rows = y.matrix();
      const Run body{rows_of<T>(rows), reinterpret_cast<const B*>(bias.data),
                     wide<Run::V>({rows, bias})};
      map<Run::V>(context, operation, body, rows.extent(0), rows.extent(1));
    });
  });
}

}  // namespace tessera::kernels::cuda
