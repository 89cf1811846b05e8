// Matrix operations on the CPU: which product each is.
#include <algorithm>

#include "kernels/cpu/fp8.hpp"
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/scratch_cursor.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

bool has_few_rows(const Linear& a, const Context& context) {
  TESSERA_CHECK(!a.codes || a.x.rows() <= kMostFewRows, "{} rows of x meet codes", a.x.rows());
  return a.codes ||
         (context.few_rows && a.operands == Operands::stored && a.x.rows() <= kMostFewRows);
}

Product matrices_of(const Linear& a) {
  return {.a = a.x.matrix(),
          .b = a.weight.matrix(),
          .c = a.y.matrix(),
          .bias = a.bias,
          .b_stored = Stored::turned};
}
Product matrices_of(const LinearBackwardInput& a) {
  return {.a = a.d_y.matrix(), .b = a.weight.matrix(), .c = a.d_x.matrix()};
}
Product matrices_of(const LinearBackwardWeight& a) {
  return {.a = a.d_y.matrix(),
          .b = a.x.matrix(),
          .c = a.d_weight.matrix(),
          .a_stored = Stored::turned,
          .write = a.write};
}

/// A product of few rows, with its scratch: of packed rows, and for each thread of the weight's.
struct FewRowsProduct {
  FewRowsProduct(const Linear& a, const Context& context, ScratchCursor scratch) {
    p = {
        .x = a.x.matrix(), .weight = a.weight, .codes = a.codes, .bias = a.bias, .y = a.y.matrix()};
    const FewRowsScratch bytes = context.hot.few_rows_scratch(p);
    if (bytes.packed > 0) p.packed = scratch.matrix(1, bytes.packed, DType::u8).data;
    if (bytes.weight > 0) weight = scratch.matrix(context.threads, bytes.weight, DType::u8);
    used = scratch.used();
  }
  FewRows p;
  View weight;
  std::int64_t used = 0;
};

void run_few_rows(const Linear& a, const Context& context) {
  const FewRowsProduct product(a, context, ScratchCursor(a.scratch));
  if (product.p.packed != nullptr) context.hot.pack_few_rows(product.p);
  parallel_ranges(context.threads, context.threads, 1, [&](Range one) {
    const Range sixteens = even_part(ceil_div(a.y.cols(), 16), one.begin, context.threads);
    const Range columns{16 * sixteens.begin, std::min(16 * sixteens.end, a.y.cols())};
    std::byte* own = product.weight ? product.weight.row_range(one.begin, 1).data : nullptr;
    if (!columns.empty()) context.hot.multiply_few_rows(product.p, columns, own);
  });
}

}  // namespace

std::int64_t scratch_bytes(const Linear& a, const Context& context) {
  if (a.operands == Operands::fp8) return fp8_scratch_bytes(product_of(a), context);
  if (has_few_rows(a, context)) {
    check(a);
    return FewRowsProduct(product_of(a), context, ScratchCursor::measuring()).used;
  }
  return context.matmul.scratch_bytes(matrices_of(product_of(a)));
}

void run(const Linear& a, const Context& context) {
  if (a.operands == Operands::fp8) {
    run_fp8(product_of(a), context);
  } else if (has_few_rows(a, context)) {
    run_few_rows(product_of(a), context);
  } else {
    context.matmul.run(matrices_of(product_of(a)), a.scratch);
  }
  if (a.preactivation) run(activation_of(a), context);
}

std::int64_t scratch_bytes(const LinearBackwardInput& a, const Context& context) {
  const LinearBackwardInput product = product_of(a);
  return a.operands == Operands::fp8 ? fp8_scratch_bytes(product, context)
                                     : context.matmul.scratch_bytes(matrices_of(product));
}

void run(const LinearBackwardInput& a, const Context& context) {
  if (a.operands == Operands::fp8) {
    run_fp8(product_of(a), context);
  } else {
    context.matmul.run(matrices_of(product_of(a)), a.scratch);
  }
  if (a.preactivation) run(activation_of(a), context);
}

std::int64_t scratch_bytes(const LinearBackwardWeight& a, const Context& context) {
  return a.operands == Operands::fp8 ? fp8_scratch_bytes(a, context)
                                     : context.matmul.scratch_bytes(matrices_of(a));
}

void run(const LinearBackwardWeight& a, const Context& context) {
  if (a.operands == Operands::fp8) {
    run_fp8(a, context);
  } else {
    context.matmul.run(matrices_of(a), a.scratch);
  }
  if (!a.d_bias) return;
  const View d_y = a.d_y.matrix();
  parallel_ranges(context.threads, d_y.extent(1), 64,
                  [&](Range columns) { context.hot.sum_rows(d_y, a.d_bias, a.write, columns); });
}

}  // namespace tessera::kernels::cpu
