#include "kernels/cuda/gemm.hpp"

#include <algorithm>
#include <set>

#include "kernels/common/contracts.hpp"

// A row-major matrix is the transpose of the column-major one in the same place. So y = x W^T, row
// by row, is y^T = W x^T column by column, and the first operand of each product below is the
// second of its operation.

namespace tessera::kernels::cuda {
namespace {

std::int64_t alignment_of(const std::byte* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address);
  return std::min<std::int64_t>(kOperandAlignment, static_cast<std::int64_t>(bits & (~bits + 1)));
}

Gemm gemm(const View& a, Turn turn_a, const View& b, Turn turn_b, const View& d, MatmulMath math) {
  const View first = a.matrix(), second = b.matrix(), result = d.matrix();
  return {.key = {.operands = a.type,
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
                  .math = a.type == DType::f32 ? math : MatmulMath::same},
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

constexpr std::int64_t kAuxRows = 8;  // ld_aux is a multiple of it (CUBLASLT_..._EPILOGUE_AUX_LD)

bool is_aux(const View& preactivation) {
  return preactivation && preactivation.type != DType::f32 &&
         preactivation.matrix().ld % kAuxRows == 0;
}

}  // namespace

bool applies_activation(const Linear& call) { return is_aux(call.preactivation); }
bool applies_activation(const LinearBackwardInput& call) { return is_aux(call.preactivation); }

Gemm gemm_of(const Linear& call, MatmulMath math) {
  check(call);
  const bool activates = applies_activation(call);
  const View result = activates ? call.y : product_of(call).y;
  Gemm product = gemm(call.weight, Turn::transpose, call.x, Turn::none, result, math);
  product.key.bias = static_cast<bool>(call.bias);
  if (activates) add_epilogue(product, Epilogue::gelu, call.preactivation);
  return product;
}

Gemm gemm_of(const LinearBackwardInput& call, MatmulMath math) {
  check(call);
  Gemm product = gemm(call.weight, Turn::none, call.d_y, Turn::none, call.d_x, math);
  if (applies_activation(call)) add_epilogue(product, Epilogue::gelu_slope, call.preactivation);
  return product;
}

Gemm gemm_of(const LinearBackwardWeight& call, MatmulMath math) {
  check(call);
  Gemm product = gemm(call.x, Turn::none, call.d_y, Turn::transpose, call.d_weight, math);
  product.key.write = call.write;
  return product;
}

std::vector<GemmKey> gemm_keys(std::span<const KernelCall> calls, MatmulMath math) {
  std::set<GemmKey> keys;
  for (const KernelCall& call : calls) {
    std::visit(
        [&](const auto& args) {
          if constexpr (requires { gemm_of(args, math); }) keys.insert(gemm_of(args, math).key);
        },
        call);
  }
  return {keys.begin(), keys.end()};
}

}  // namespace tessera::kernels::cuda
