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

}  // namespace

Gemm gemm_of(const Linear& call, MatmulMath math) {
  check(call);
  Gemm product = gemm(call.weight, Turn::transpose, call.x, Turn::none, call.y, math);
  product.key.bias = static_cast<bool>(call.bias);
  return product;
}

Gemm gemm_of(const LinearBackwardInput& call, MatmulMath math) {
  check(call);
  return gemm(call.weight, Turn::none, call.d_y, Turn::none, call.d_x, math);
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
