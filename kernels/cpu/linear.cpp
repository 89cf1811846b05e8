// Matrix operations on the CPU: which products of the library each is made of.
#include <algorithm>

#include "kernels/cpu/fp8.hpp"
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/scratch_cursor.hpp"
#include "kernels/cpu/team.hpp"

// Every product is cut over N, the weight's rows, where that helps: a reduction over a whole
// vocabulary runs faster in pieces, and operands that the library cannot take as they are (f16
// everywhere, bf16 before AVX-512) are widened to f32 a piece at a time.

namespace tessera::kernels::cpu {
namespace {

constexpr std::int64_t kReductionPiece = 4096, kWidenedPiece = 1024;

bool has_few_rows(const Linear& a, const Context& context) {
  return context.few_rows && a.operands == Operands::stored && a.x.rows() <= kMostFewRows;
}

void convert(const View& x, const View& out, Write write, const Context& context) {
  const View from = x.matrix(), to = out.matrix();
  parallel_ranges(context.threads, from.extent(0), 1,
                  [&](Range rows) { context.hot.convert(from, to, write, rows); });
}

View widened(const View& v, ScratchCursor& scratch) {
  return !v || v.type == DType::f32 ? v : scratch.matrix(v.rows(), v.cols());
}

/// The product on f32 copies where it is not one that the library takes.
struct Prepared {
  Product product;
  bool copied = false;
};
Prepared prepare(const Product& p, ScratchCursor& scratch, const Context& context) {
  if (context.matmul.native(p.a.type)) return {p, false};
  Product wide = p;
  wide.a = widened(p.a, scratch);
  wide.b = widened(p.b, scratch);
  wide.bias = widened(p.bias, scratch);
  wide.c = widened(p.c, scratch);
  if (p.c.type != DType::f32) wide.write = Write::overwrite;
  return {wide, true};
}

void multiply(const Product& p, ScratchCursor scratch, const Context& context) {
  const auto [product, copied] = prepare(p, scratch, context);
  if (copied) {
    convert(p.a, product.a, Write::overwrite, context);
    convert(p.b, product.b, Write::overwrite, context);
    if (p.bias) convert(p.bias, product.bias, Write::overwrite, context);
  }
  context.matmul.run(product, scratch.rest());
  if (product.c.data != p.c.data) convert(product.c, p.c, p.write, context);
}

std::int64_t multiply_bytes(const Product& p, ScratchCursor scratch, const Context& context) {
  const Product product = prepare(p, scratch, context).product;
  return scratch.used() + context.matmul.scratch_bytes(product);
}

/// f(range) for the pieces of N.
template <typename F>
void for_pieces(std::int64_t n, std::int64_t piece, F&& f) {
  const std::int64_t count = ceil_div(n, piece);
  for (std::int64_t i = 0; i < count; ++i) f(even_part(n, i, count));
}

View rows_of(const View& v, Range r) { return v.row_range(r.begin, r.count()); }
View columns_of(const View& v, Range r) { return v.matrix().col_range(r.begin, r.count()); }

/// A piece of a product and where its scratch begins.
template <typename Visit>
void visit_products(const Linear& a, ScratchCursor scratch, const Context& context, Visit visit) {
  const std::int64_t n = a.weight.rows();
  for_pieces(n, context.matmul.native(a.x.type) ? n : kWidenedPiece, [&](Range r) {
    visit(Product{.a = a.x,
                  .b = rows_of(a.weight, r),
                  .c = columns_of(a.y, r),
                  .bias = a.bias ? a.bias.range(r.begin, r.count()) : View(),
                  .b_stored = Stored::turned},
          scratch);
  });
}

/// Pieces are added up in f32: in d_x itself, or in scratch.
template <typename Visit>
void visit_products(const LinearBackwardInput& a, const View& sum, ScratchCursor scratch,
                    const Context& context, Visit visit) {
  const std::int64_t n = a.weight.rows();
  std::int64_t piece = kWidenedPiece;
  if (context.matmul.native(a.d_y.type)) piece = a.d_y.type == DType::f32 ? kReductionPiece : n;
  for_pieces(n, piece, [&](Range r) {
    visit(Product{.a = columns_of(a.d_y, r),
                  .b = rows_of(a.weight, r),
                  .c = sum,
                  .write = r.begin == 0 ? Write::overwrite : Write::add},
          scratch);
  });
}
View piecewise_sum(const LinearBackwardInput& a, ScratchCursor& scratch, const Context& context) {
  return context.matmul.native(a.d_x.type) ? a.d_x : scratch.matrix(a.d_x.rows(), a.d_x.cols());
}

template <typename Visit>
void visit_products(const LinearBackwardWeight& a, ScratchCursor scratch, const Context& context,
                    Visit visit) {
  const std::int64_t n = a.d_weight.rows();
  for_pieces(n, context.matmul.native(a.d_y.type) ? n : kWidenedPiece, [&](Range r) {
    visit(Product{.a = columns_of(a.d_y, r),
                  .b = a.x,
                  .c = rows_of(a.d_weight, r),
                  .a_stored = Stored::turned,
                  .write = a.write},
          scratch);
  });
}

void run_few_rows(const Linear& a, const Context& context) {
  ScratchCursor scratch(a.scratch);
  const View x = widened(a.x.matrix(), scratch), y = a.y.matrix();
  if (x.data != a.x.data) convert(a.x, x, Write::overwrite, context);
  parallel_ranges(context.threads, y.cols(), 16, [&](Range columns) {
    context.hot.multiply_few_rows(x, a.weight, a.bias, y, columns);
  });
}

}  // namespace

std::int64_t scratch_bytes(const Linear& a, const Context& context) {
  if (a.operands == Operands::fp8) return fp8_scratch_bytes(product_of(a), context);
  if (has_few_rows(a, context)) {
    check(a);
    ScratchCursor cursor = ScratchCursor::measuring();
    widened(a.x.matrix(), cursor);
    return cursor.used();
  }
  std::int64_t bytes = 0;
  visit_products(product_of(a), ScratchCursor::measuring(), context,
                 [&](const Product& p, const ScratchCursor& scratch) {
                   bytes = std::max(bytes, multiply_bytes(p, scratch, context));
                 });
  return bytes;
}

void run(const Linear& a, const Context& context) {
  check(a);
  if (a.operands == Operands::fp8) {
    run_fp8(product_of(a), context);
  } else if (has_few_rows(a, context)) {
    run_few_rows(product_of(a), context);
  } else {
    visit_products(
        product_of(a), ScratchCursor(a.scratch), context,
        [&](const Product& p, const ScratchCursor& scratch) { multiply(p, scratch, context); });
  }
  if (a.preactivation) run(activation_of(a), context);
}

std::int64_t scratch_bytes(const LinearBackwardInput& a, const Context& context) {
  if (a.operands == Operands::fp8) return fp8_scratch_bytes(product_of(a), context);
  ScratchCursor cursor = ScratchCursor::measuring();
  const View sum = piecewise_sum(a, cursor, context);
  std::int64_t bytes = 0;
  visit_products(a, sum, cursor, context, [&](const Product& p, const ScratchCursor& scratch) {
    bytes = std::max(bytes, multiply_bytes(p, scratch, context));
  });
  return bytes;
}

void run(const LinearBackwardInput& a, const Context& context) {
  check(a);
  if (a.operands == Operands::fp8) {
    run_fp8(product_of(a), context);
  } else {
    ScratchCursor cursor(a.scratch);
    const View sum = piecewise_sum(a, cursor, context);
    visit_products(a, sum, cursor, context, [&](const Product& p, const ScratchCursor& scratch) {
      multiply(p, scratch, context);
    });
    if (sum.data != a.d_x.data) convert(sum, a.d_x, Write::overwrite, context);
  }
  if (a.preactivation) run(activation_of(a), context);
}

std::int64_t scratch_bytes(const LinearBackwardWeight& a, const Context& context) {
  if (a.operands == Operands::fp8) return fp8_scratch_bytes(a, context);
  std::int64_t bytes = 0;
  visit_products(a, ScratchCursor::measuring(), context,
                 [&](const Product& p, const ScratchCursor& scratch) {
                   bytes = std::max(bytes, multiply_bytes(p, scratch, context));
                 });
  return bytes;
}

void run(const LinearBackwardWeight& a, const Context& context) {
  check(a);
  if (a.operands == Operands::fp8) {
    run_fp8(a, context);
  } else {
    visit_products(
        a, ScratchCursor(a.scratch), context,
        [&](const Product& p, const ScratchCursor& scratch) { multiply(p, scratch, context); });
  }
  if (!a.d_bias) return;
  const View d_y = a.d_y.matrix();
  parallel_ranges(context.threads, d_y.extent(1), 64,
                  [&](Range columns) { context.hot.sum_rows(d_y, a.d_bias, a.write, columns); });
}

}  // namespace tessera::kernels::cpu
