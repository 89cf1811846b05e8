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

/// x as floats, where that is not what it is.
View widened(const View& x, ScratchCursor& scratch) {
  return x.type == DType::f32 ? x : scratch.matrix(x.rows(), x.cols());
}

/// What each thread makes of codes.
View decoded(const Linear& a, int threads, ScratchCursor& scratch) {
  return a.codes ? scratch.matrix(threads, kMostFewColumns * a.x.cols(), a.x.type) : View();
}

void run_few_rows(const Linear& a, const Context& context) {
  ScratchCursor scratch(a.scratch);
  const FewRows product{.x = widened(a.x.matrix(), scratch),
                        .weight = a.weight,
                        .codes = a.codes,
                        .bias = a.bias,
                        .y = a.y.matrix(),
                        .type = a.x.type};
  const View elements = decoded(a, context.threads, scratch);
  if (product.x.data != a.x.data)
    context.hot.convert(a.x.matrix(), product.x, Write::overwrite, {0, a.x.rows()});
  parallel_ranges(context.threads, context.threads, 1, [&](Range one) {
    const Range sixteens = even_part(ceil_div(a.y.cols(), 16), one.begin, context.threads);
    const Range columns{16 * sixteens.begin, std::min(16 * sixteens.end, a.y.cols())};
    std::byte* own = a.codes ? elements.row_range(one.begin, 1).data : nullptr;
    if (!columns.empty()) context.hot.multiply_few_rows(product, columns, own);
  });
}

}  // namespace

std::int64_t scratch_bytes(const Linear& a, const Context& context) {
  if (a.operands == Operands::fp8) return fp8_scratch_bytes(product_of(a), context);
  if (has_few_rows(a, context)) {
    check(a);
    ScratchCursor cursor = ScratchCursor::measuring();
    widened(a.x.matrix(), cursor);
    decoded(a, context.threads, cursor);
    return cursor.used();
  }
  return context.matmul.scratch_bytes(matrices_of(product_of(a)));
}

void run(const Linear& a, const Context& context) {
  check(a);
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
  check(a);
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
  check(a);
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
