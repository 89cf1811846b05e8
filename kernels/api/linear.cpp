#include "kernels/api/linear.hpp"

#include "kernels/api/checks.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels {
namespace {

void check_linear(const View& x, const View& weight, const View& y) {
  check_floats({x, weight, y});
  TESSERA_CHECK(x.rows() == y.rows() && x.cols() == weight.cols() && y.cols() == weight.rows(),
                "x ({}, {}), weight ({}, {}), y ({}, {})", x.rows(), x.cols(), weight.rows(),
                weight.cols(), y.rows(), y.cols());
}

/// Extents, the type and the result of a product with fp8 operands.
void check_operands(Operands operands, const View& x, const View& y, const View& result) {
  if (operands == Operands::stored) return;
  TESSERA_CHECK(x.rows() % kFp8Granule == 0 && x.cols() % kFp8Granule == 0 &&
                    y.cols() % kFp8Granule == 0 && x.type != DType::f16,
                "an fp8 product of ({}, {}) to ({}, {}) in {}", x.rows(), x.cols(), y.rows(),
                y.cols(), to_string(x.type));
  const auto address = reinterpret_cast<std::uintptr_t>(result.data);
  const std::int64_t distance = result.matrix().ld * size_of(result.type);
  TESSERA_CHECK(address % kFp8Alignment == 0 && distance % kFp8Alignment == 0,
                "an fp8 product into rows {} bytes apart, {} bytes behind a boundary of {}",
                distance, address % kFp8Alignment, kFp8Alignment);
}

/// What gelu is of, beside its result or its gradient.
void check_preactivation(const View& preactivation, const View& result, DType operands) {
  if (!preactivation) return;
  check_same_matrix({preactivation, result});
  TESSERA_CHECK(preactivation.type == operands && result.type == operands,
                "gelu of {} from products of {} into {}", to_string(preactivation.type),
                to_string(operands), to_string(result.type));
}

}  // namespace

void check_result(const View& result, DType operands) {
  TESSERA_CHECK(result.type == DType::f32 || result.type == operands, "product of {} into {}",
                to_string(operands), to_string(result.type));
}

void check_weight(const View& weight, const WeightCodes& codes, const View& x, std::int64_t rows) {
  TESSERA_CHECK(weight.rows() == rows && codes.columns(weight) == x.cols(),
                "a weight of ({}, {}) {} for {} columns from {}", weight.rows(), weight.cols(),
                to_string(weight.type), rows, x.cols());
  if (!codes) return check_same_type({x, weight});
  check_kept(codes.format);
  const std::int64_t n = rows * x.cols();
  check_flat({weight}, DType::u8, n * codes.format.bits() / 8);
  check_flat({codes.scales}, DType::f32, ceil_div(n, codes.format.block));
}

void check(const Linear& a) {
  check_floats({a.x, a.y});
  check_weight(a.weight, a.codes, a.x, a.y.cols());
  TESSERA_CHECK(a.x.rows() == a.y.rows() && (!a.codes || a.operands == Operands::stored),
                "x has {} rows, y {}; codes have no other operands", a.x.rows(), a.y.rows());
  check_same_type({a.x, a.bias});
  check_result(a.y, a.x.type);
  if (a.bias) check_flat({a.bias}, a.x.type, a.y.cols());
  check_preactivation(a.preactivation, a.y, a.x.type);
  check_operands(a.operands, a.x, a.y, product_of(a).y);
}

void check(const LinearBackwardInput& a) {
  check_linear(a.d_x, a.weight, a.d_y);
  check_same_type({a.d_y, a.weight});
  check_result(a.d_x, a.d_y.type);
  check_preactivation(a.preactivation, a.d_x, a.d_y.type);
  check_operands(a.operands, a.d_y, a.d_x, a.d_x);
}

void check(const LinearBackwardWeight& a) {
  check_linear(a.x, a.d_weight, a.d_y);
  check_same_type({a.d_y, a.x});
  check_result(a.d_weight, a.x.type);
  check_operands(a.operands, a.x, a.d_y, a.d_weight);
  if (!a.d_bias) return;
  check_floats({a.d_bias});
  check_flat({a.d_bias}, a.d_bias.type, a.d_y.cols());
}

}  // namespace tessera::kernels
