// Matrix products: y = x W^T + b and its two gradients. Weights are stored (out, in), as in
// torch.nn.Linear. Products accumulate in f32; y and d_x may be f32 whatever x and d_y are, as
// summands of a sum that is rounded once. A product may include the gelu that follows it.
#pragma once

#include <utility>

#include "kernels/api/activation.hpp"
#include "kernels/api/quantize.hpp"

namespace tessera::kernels {

/// What a product multiplies: its operands as they are stored, or as numbers of 8 bits
/// (Micikevicius et al. 2022), x and weight in e4m3, d_y in e5m2. Each of them is then multiplied
/// by a scale that puts its largest magnitude at the largest number of its format, and rounded; the
/// f32 sum is multiplied by both scales' inverses before anything else happens to it. An operand
/// that holds an infinity or not-a-number makes all of the product not-a-number. Rows, N and K must
/// be multiples of kFp8Granule, and operands f32 or bf16; every row of what the product is written
/// to begins on kFp8Alignment bytes.
enum class Operands : std::uint8_t { stored, fp8 };
inline constexpr std::int64_t kFp8Granule = 16, kFp8Alignment = 16;

/// How the elements of a weight, row after row, are codes (kernels/api/quantize): consecutive ones
/// have a scale together. Absent without scales: the weight is elements. A product multiplies each
/// code's value, rounded to the type of x.
struct WeightCodes {
  View scales;  // (elements / block, rounded up) f32
  BlockFormat format;

  explicit operator bool() const { return static_cast<bool>(scales); }
  /// Columns of a weight that is stored so.
  std::int64_t columns(const View& weight) const {
    return *this ? weight.cols() * 8 / format.bits() : weight.cols();
  }
  bool operator==(const WeightCodes&) const = default;
};

/// y = x W^T + b, or its gelu. Where a back end applies gelu as it writes the product, it is that
/// of the f32 sum; elsewhere that of the preactivation as written.
struct Linear {
  static constexpr const char* kName = "linear";
  View x;              // (..., K)
  View weight;         // (N, K), or its codes (N, K bits / 8), u8
  View bias;           // (N) or absent
  View y;              // (..., N)
  View preactivation;  // (..., N): x W^T + b where y is its gelu; of y's and x's type, or absent
  Operands operands = Operands::stored;
  WeightCodes codes;  // only of as many rows as Device::multiplies_codes() says
  View scratch;

  double flop() const {
    return 2.0 * static_cast<double>(x.rows()) * static_cast<double>(x.cols() * y.cols());
  }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.weight, Access::read), f(s.bias, Access::read), f(s.y, Access::write);
    f(s.codes.scales, Access::read), f(s.preactivation, Access::write);
    f(s.scratch, Access::write);
  }
  bool operator==(const Linear&) const = default;
};

/// d_x = d_y W, or that times the slope of gelu, at once or after d_x is written.
struct LinearBackwardInput {
  static constexpr const char* kName = "linear_dgrad";
  View d_y;            // (..., N)
  View weight;         // (N, K)
  View d_x;            // (..., K)
  View preactivation;  // (..., K): what gelu was of; of d_x's and d_y's type, or absent
  Operands operands = Operands::stored;
  View scratch;

  double flop() const {
    return 2.0 * static_cast<double>(d_y.rows()) * static_cast<double>(weight.elements());
  }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.d_y, Access::read), f(s.weight, Access::read), f(s.d_x, Access::write);
    f(s.preactivation, Access::read), f(s.scratch, Access::write);
  }
  bool operator==(const LinearBackwardInput&) const = default;
};

/// The two operations that a product with gelu consists of, for where they are computed separately.
inline Linear product_of(Linear a) {
  if (a.preactivation) a.y = std::exchange(a.preactivation, {});
  return a;
}
inline Activate activation_of(const Linear& a) { return {.x = a.preactivation, .y = a.y}; }
inline LinearBackwardInput product_of(LinearBackwardInput a) {
  a.preactivation = {};
  return a;
}
inline ActivateBackward activation_of(const LinearBackwardInput& a) {
  return {.x = a.preactivation, .d_y = a.d_x, .d_x = a.d_x};
}

/// What a product of operands of one type may be written as.
void check_result(const View& result, DType operands);

/// A weight of (rows, columns), elements of x's type or codes.
void check_weight(const View& weight, const WeightCodes& codes, const View& x, std::int64_t rows);

/// For back ends that multiply elements only.
template <typename Product>
void check_no_codes(const Product& a) {
  TESSERA_CHECK(!a.codes, "{}: a weight of codes", Product::kName);
}

/// d_weight (+)= d_y^T x; d_bias (+)= sum of d_y over rows (in an order that does not depend on
/// threads).
struct LinearBackwardWeight {
  static constexpr const char* kName = "linear_wgrad";
  View d_y;       // (..., N)
  View x;         // (..., K)
  View d_weight;  // (N, K), accumulation type (f32 even when x is bf16)
  View d_bias;    // (N) or absent
  Write write = Write::overwrite;
  Operands operands = Operands::stored;
  View scratch;

  double flop() const {
    return 2.0 * static_cast<double>(x.rows()) * static_cast<double>(d_weight.elements());
  }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.d_y, Access::read), f(s.x, Access::read), f(s.d_weight, access_of(s.write));
    f(s.d_bias, access_of(s.write)), f(s.scratch, Access::write);
  }
  bool operator==(const LinearBackwardWeight&) const = default;
};

}  // namespace tessera::kernels
