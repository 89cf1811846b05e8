// Matrix operations on a GPU: the product by cuBLASLt, and what it leaves to kernels of our own.
#include "kernels/cuda/linear.hpp"

#include "core/math.hpp"
#include "kernels/common/types.hpp"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/fp8.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/matmul.hpp"
#include "kernels/cuda/operations.hpp"
#include "kernels/cuda/scratch.hpp"

namespace tessera::kernels::cuda {
namespace {

/// The bias as the library takes it: of the result's type, on its alignment. Another is copied.
const std::byte* prepared_bias(const Linear& a, const Context& context) {
  const auto address = reinterpret_cast<std::uintptr_t>(a.bias.data);
  if (a.bias.type == a.y.type && address % kOperandAlignment == 0) return a.bias.data;
  const View copy(after_workspace(a.scratch) + fp8_bytes(a), a.y.type, {a.bias.elements()});
  run(Convert{.x = a.bias, .out = copy}, context);
  return copy.data;
}

void sum_rows(const LinearBackwardWeight& a, const Context& context) {
  const ColumnSums sums(a);
  const View x = a.d_y.matrix();
  auto* partial = reinterpret_cast<float*>(after_workspace(a.scratch) + fp8_bytes(a));
  with_type(x.type, [&]<typename T>() {
    constexpr std::int64_t kColumns = 32 * kRun<T>;
    launch({.operation = a.kName,
            .stream = context.queue.stream,
            .blocks = sums.chunks * ceil_div(sums.columns, kColumns),
            .threads = kChunkThreads},
           sum_chunks<T>, rows_of<const T>(x), sums.rows, sums.columns, sums.chunks,
           wide<kRun<T>>({x}), partial);
  });
  with_type(a.d_bias.type, [&]<typename T>() {
    launch({.operation = a.kName,
            .stream = context.queue.stream,
            .blocks = ceil_div(sums.columns, kSumColumns),
            .threads = kSumColumns * kSumRows},
           column_sum_kernel<float, T>, partial, sums.chunks, sums.columns,
           ColumnSumsOut<T>{.first = reinterpret_cast<T*>(a.d_bias.data)}, a.write == Write::add);
  });
}

template <typename Call>
void multiply(const Call& a, const Gemm& product, const std::byte* bias, const Context& context) {
  if (a.operands == Operands::fp8) {
    for (const Fp8Operand& operand : fp8_operands(a)) convert_to_fp8(operand, a.kName, context);
  }
  context.matmul.run(product, bias, workspace_of(a.scratch));
}

/// A matrix that a product writes or reads beside its operands, row by row.
View matrix_of(const GemmKey& key, std::byte* data, std::int64_t ld) {
  View v(data, key.result, {key.n, key.m});
  v.ld = ld;
  return v;
}

}  // namespace

void finish(const Gemm& whole, const Gemm& done, const View& bias, const Context& context) {
  const View d = matrix_of(whole.key, whole.d, whole.key.ldd);
  const View aux = matrix_of(whole.key, whole.aux, whole.key.ld_aux);
  if (whole.key.bias && !done.key.bias)
    add_bias(matrix_of(done.key, done.d, done.key.ldd), bias, Linear::kName, context);
  if (whole.key.epilogue == done.key.epilogue) return;
  switch (whole.key.epilogue) {
    case Epilogue::none: return;
    case Epilogue::gelu: return run(Activate{.x = aux, .y = d}, context);
    case Epilogue::gelu_slope: return run(ActivateBackward{.x = aux, .d_y = d, .d_x = d}, context);
  }
}

void run(const Linear& a, const Context& context) {
  const Gemm product = context.matmul.product_for(a, context.rules);
  multiply(a, product, product.key.bias ? prepared_bias(a, context) : nullptr, context);
  finish(whole_gemm_of(a, context.rules), product, a.bias, context);
}

void run(const LinearBackwardInput& a, const Context& context) {
  const Gemm product = context.matmul.product_for(a, context.rules);
  multiply(a, product, nullptr, context);
  finish(whole_gemm_of(a, context.rules), product, {}, context);
}

void run(const LinearBackwardWeight& a, const Context& context) {
  multiply(a, context.matmul.product_for(a, context.rules), nullptr, context);
  if (a.d_bias) sum_rows(a, context);
}

}  // namespace tessera::kernels::cuda
