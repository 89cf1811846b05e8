#include "kernels/cpu/fp8.hpp"

#include <array>
#include <atomic>

#include "kernels/common/fp8.hpp"
#include "kernels/cpu/scratch_cursor.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

struct Fp8Operand {
  View x, copy;
  DType format;
};

/// A call and what it is made of: `product` multiplies copies of the operands into f32, all of them
/// in scratch.
template <typename Operation>
struct Fp8Parts {
  Operation product;
  std::array<Fp8Operand, 2> operands;
  View sums, bias, result;
  Write write = Write::overwrite;
};

View copy_of(const View& x, ScratchCursor& scratch) {
  return scratch.matrix(x.rows(), x.cols(), DType::bf16);
}
View sums_of(const View& result, ScratchCursor& scratch) {
  return scratch.matrix(result.rows(), result.cols());
}

Fp8Parts<Linear> parts_of(const Linear& a, ScratchCursor scratch) {
  const View x = copy_of(a.x, scratch), weight = copy_of(a.weight, scratch),
             y = sums_of(a.y, scratch);
  return {.product = {.x = x, .weight = weight, .y = y, .scratch = scratch.rest()},
          .operands = {{{a.x, x, DType::e4m3}, {a.weight, weight, DType::e4m3}}},
          .sums = y,
          .bias = a.bias,
          .result = a.y};
}

Fp8Parts<LinearBackwardInput> parts_of(const LinearBackwardInput& a, ScratchCursor scratch) {
  const View d_y = copy_of(a.d_y, scratch), weight = copy_of(a.weight, scratch),
             d_x = sums_of(a.d_x, scratch);
  return {.product = {.d_y = d_y, .weight = weight, .d_x = d_x, .scratch = scratch.rest()},
          .operands = {{{a.d_y, d_y, DType::e5m2}, {a.weight, weight, DType::e4m3}}},
          .sums = d_x,
          .result = a.d_x};
}

Fp8Parts<LinearBackwardWeight> parts_of(const LinearBackwardWeight& a, ScratchCursor scratch) {
  const View d_y = copy_of(a.d_y, scratch), x = copy_of(a.x, scratch),
             d_weight = sums_of(a.d_weight, scratch);
  return {.product = {.d_y = d_y, .x = x, .d_weight = d_weight, .scratch = scratch.rest()},
          .operands = {{{a.d_y, d_y, DType::e5m2}, {a.x, x, DType::e4m3}}},
          .sums = d_weight,
          .result = a.d_weight,
          .write = a.write};
}

/// Fills the copy of an operand; returns the factor that undoes its scale. No number depends on how
/// rows are divided over threads.
float round_operand(const Fp8Operand& operand, const Context& context) {
  const View x = operand.x.matrix();
  std::atomic<std::uint32_t> largest = 0;
  parallel_ranges(context.threads, x.rows(), 1, [&](Range rows) {
    const std::uint32_t own = context.hot.largest_magnitude(x, rows);
    std::uint32_t most = largest;
    while (most < own && !largest.compare_exchange_weak(most, own)) {
    }
  });
  Fp8Scale scale;
  with_fp8(operand.format, [&]<typename Format>() { scale = fp8_scale<Format>(largest); });
  parallel_ranges(context.threads, x.rows(), 1, [&](Range rows) {
    context.hot.round_to_fp8(x, scale.to, operand.format, operand.copy, rows);
  });
  return scale.back;
}

template <typename Operation>
void run_parts(const Operation& a, const Context& context) {
  const auto parts = parts_of(a, ScratchCursor(a.scratch));
  float factor = 1;
  for (const Fp8Operand& operand : parts.operands) factor *= round_operand(operand, context);
  run(parts.product, context);
  const View result = parts.result.matrix();
  parallel_ranges(context.threads, result.rows(), 1, [&](Range rows) {
    context.hot.scale_sums(parts.sums, factor, parts.bias, result, parts.write, rows);
  });
}

template <typename Operation>
std::int64_t parts_bytes(const Operation& a, const Context& context) {
  auto cursor = ScratchCursor::measuring();
  const std::byte* begin = cursor.rest().data;
  const auto product = parts_of(a, cursor).product;
  return product.scratch.data - begin + scratch_bytes(product, context);
}

}  // namespace

void run_fp8(const Linear& a, const Context& context) { run_parts(a, context); }
void run_fp8(const LinearBackwardInput& a, const Context& context) { run_parts(a, context); }
void run_fp8(const LinearBackwardWeight& a, const Context& context) { run_parts(a, context); }

std::int64_t fp8_scratch_bytes(const Linear& a, const Context& context) {
  return parts_bytes(a, context);
}
std::int64_t fp8_scratch_bytes(const LinearBackwardInput& a, const Context& context) {
  return parts_bytes(a, context);
}
std::int64_t fp8_scratch_bytes(const LinearBackwardWeight& a, const Context& context) {
  return parts_bytes(a, context);
}

}  // namespace tessera::kernels::cpu
