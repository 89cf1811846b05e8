#include "kernels/cuda/gemm.hpp"

#include <algorithm>

#include "kernels/cuda/apart.hpp"
#include "kernels/cuda/scratch.hpp"

// A row-major matrix is the transpose of the column-major one in the same place. So y = x W^T, row
// by row, is y^T = W x^T column by column, and the first operand of each product below is the
// second of its operation.

namespace tessera::kernels::cuda {
namespace {

std::int64_t alignment_of(const std::byte* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address);
  return std::min<std::int64_t>(kOperandAlignment, static_cast<std::int64_t>(bits & (~bits + 1)));
}

Gemm gemm(const View& a, Turn turn_a, const View& b, Turn turn_b, const View& d,
          const ProductRules& rules) {
  const View first = a.matrix(), second = b.matrix(), result = d.matrix();
  return {.key = {.type_a = a.type,
                  .type_b = b.type,
                  .result = d.type,
                  .a = turn_a,
                  .b = turn_b,
                  .m = result.extent(1),
                  .n = result.extent(0),
                  .k = first.extent(turn_a == Turn::none ? 0 : 1),
                  .lda = first.ld,
                  .ldb = second.ld,
                  .ldd = result.ld,
                  .align_a = alignment_of(a.data),
                  .align_b = alignment_of(b.data),
                  .align_d = alignment_of(d.data),
                  .math = a.type == DType::f32 ? rules.math : MatmulMath::same},
          .a = a.data,
          .b = b.data,
          .d = d.data};
}

void add_epilogue(Gemm& product, Epilogue epilogue, const View& preactivation) {
  const View aux = preactivation.matrix();
  product.key.epilogue = epilogue;
  product.key.ld_aux = aux.ld;
  product.key.align_aux = alignment_of(aux.data);
  product.aux = aux.data;
}

/// Whether all rows begin on kOperandAlignment.
bool rows_aligned(const View& v) {
  return alignment_of(v.data) == kOperandAlignment &&
         v.matrix().ld * size_of(v.type) % kOperandAlignment == 0;
}

/// Whether the product of a call with a preactivation applies gelu. `matrices`: the product's own.
template <typename Call>
bool activates(const Call& call, const ProductRules& rules, std::initializer_list<View> matrices) {
  return rules.gelu && call.operands == Operands::stored && call.preactivation.type != DType::f32 &&
         rows_aligned(call.preactivation) && std::ranges::all_of(matrices, rows_aligned);
}

/// Places operands in the call's scratch.
template <typename Call>
std::array<Fp8Operand, 2> placed(const Call& call, std::array<Fp8Operand, 2> operands) {
  std::byte* at = after_workspace(call.scratch);
  for (Fp8Operand& o : operands) {
    const Fp8Scratch size(o.x);
    const bool turned = o.turn == Turn::transpose;
    o.codes =
        View(at, o.format, {turned ? o.x.cols() : o.x.rows(), turned ? o.x.rows() : o.x.cols()});
    o.magnitudes = View(at + size.magnitudes, DType::i32, {kFp8Parts});
    o.scale = View(at + size.scale, DType::f32, {std::int64_t{1}});
    at += size.bytes;
  }
  return operands;
}

/// The product of operands as they are stored, transposed as `a` and `b` say, or of their codes.
template <typename Call>
Gemm gemm(const Call& call, const View& a, Turn turn_a, const View& b, Turn turn_b, const View& d,
          const ProductRules& rules) {
  if (call.operands == Operands::stored) return gemm(a, turn_a, b, turn_b, d, rules);
  const auto [first, second] = fp8_operands(call);
  Gemm product = gemm(first.codes, Turn::transpose, second.codes, Turn::none, d, rules);
  product.scale_a = first.scale.data;
  product.scale_b = second.scale.data;
  return product;
}

}  // namespace

std::array<Fp8Operand, 2> fp8_operands(const Linear& call) {
  return placed(call, {{{.x = call.weight}, {.x = call.x}}});
}
std::array<Fp8Operand, 2> fp8_operands(const LinearBackwardInput& call) {
  return placed(call, {{{.x = call.weight, .turn = Turn::transpose},
                        {.x = call.d_y, .format = DType::e5m2}}});
}
std::array<Fp8Operand, 2> fp8_operands(const LinearBackwardWeight& call) {
  return placed(call, {{{.x = call.x, .turn = Turn::transpose},
                        {.x = call.d_y, .format = DType::e5m2, .turn = Turn::transpose}}});
}

Gemm whole_gemm_of(const Linear& call, const ProductRules& rules) {
  check(call);
  check_no_codes(call);
  Gemm product = gemm(call, call.weight, Turn::transpose, call.x, Turn::none, call.y, rules);
  product.key.bias = static_cast<bool>(call.bias);
  if (call.preactivation) add_epilogue(product, Epilogue::gelu, call.preactivation);
  return product;
}

Gemm whole_gemm_of(const LinearBackwardInput& call, const ProductRules& rules) {
  check(call);
  Gemm product = gemm(call, call.weight, Turn::none, call.d_y, Turn::none, call.d_x, rules);
  if (call.preactivation) add_epilogue(product, Epilogue::gelu_slope, call.preactivation);
  return product;
}

Gemm whole_gemm_of(const LinearBackwardWeight& call, const ProductRules& rules) {
  check(call);
  Gemm product = gemm(call, call.x, Turn::none, call.d_y, Turn::transpose, call.d_weight, rules);
  product.key.write = call.write;
  return product;
}

Gemm gemm_of(const Linear& call, const ProductRules& rules) {
  Gemm product = whole_gemm_of(call, rules);
  if (call.preactivation && !activates(call, rules, {call.x, call.weight, call.y}))
    product = without_last(product);
  if (call.bias && call.operands == Operands::fp8 && call.y.type == DType::f32)
    product = without_last(product);
  return product;
}

Gemm gemm_of(const LinearBackwardInput& call, const ProductRules& rules) {
  const Gemm product = whole_gemm_of(call, rules);
  const bool apart =
      call.preactivation && !activates(call, rules, {call.d_y, call.weight, call.d_x});
  return apart ? without_last(product) : product;
}

Gemm gemm_of(const LinearBackwardWeight& call, const ProductRules& rules) {
  return whole_gemm_of(call, rules);
}

}  // namespace tessera::kernels::cuda
