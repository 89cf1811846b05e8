// Fill, rows in turn, conversion and sums on a GPU: checks arguments, launches the kernels.
#include "kernels/cuda/elementwise.cuh"

#include "kernels/common/types.hpp"
#include "kernels/cuda/exact_sum.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {

void run(const Fill& a, const Context& context) {
  if (a.out.elements() == 0) return;
  check_cuda(cudaMemsetAsync(a.out.data, 0, static_cast<std::size_t>(a.out.span_bytes()),
                             context.queue.stream),
             a.kName);
}

void run(const TakeRow& a, const Context& context) {
  for (const View& v : {a.x, a.out}) {
    TESSERA_CHECK(reinterpret_cast<std::uintptr_t>(v.data) % kRowAlignment == 0,
                  "take_row at no multiple of {} bytes", kRowAlignment);
  }
  launch(on(context, a.kName, 1, kTakeRowThreads), take_row_kernel,
         reinterpret_cast<const uint4*>(a.x.data), a.x.rows(), a.next.as<std::int64_t>(),
         reinterpret_cast<uint4*>(a.out.data), a.x.cols() / kRowAlignment);
}

void run(const Convert& a, const Context& context) {
  with_type(a.x.type, [&]<typename T>() {
    with_type(a.out.type, [&]<typename G>() {
      using Run = ConvertRun<T, G>;
      const bool dense = a.x.dense() && a.out.dense();
      const View x = dense ? a.x.range(0, a.x.elements()) : a.x.matrix(),
                 out = dense ? a.out.range(0, a.x.elements()) : a.out.matrix();
      const Run body{x.as<T>(),
                     out.as<G>(),
                     x.ld,
                     out.ld,
                     reinterpret_cast<const float*>(a.verdict.data),
                     a.write == Write::add,
                     wide<Run::V>({x, out})};
      map<Run::V>(context, a.kName, body, x.rows(), x.cols());
    });
  });
}

void run(const OrderChunks& a, const Context& context) {
  with_type(a.x.type, [&]<typename T>() {
    using Run = OrderChunksRun<T>;
    const Run body{rows_of<T>(a.x.matrix()),
                   rows_of<T>(a.out.matrix()),
                   a.chunks,
                   a.samples,
                   a.tokens(),
                   a.to,
                   wide<Run::V>({a.x, a.out})};
    map<Run::V>(context, a.kName, body, a.x.rows(), a.x.cols());
  });
}

void run(const Scale& a, const Context& context) {
  with_type(a.x.type, [&]<typename T>() {
    using Run = ScaleRun<T>;
    const Run body{rows_of<T>(a.x), rows_of<T>(a.out), a.factor, wide<Run::V>({a.x, a.out})};
    map<Run::V>(context, a.kName, body, a.x.rows(), a.x.cols());
  });
}

void run(const Blend& a, const Context& context) {
  const std::int64_t n = a.out.elements();
  const View y = a.y.range(0, n), out = a.out.range(0, n);
  const BlendRun body{y.as<float>(),
                      out.as<float>(),
                      a.keep,
                      a.add,
                      reinterpret_cast<const float*>(a.scalars.data),
                      reinterpret_cast<const float*>(a.verdict.data),
                      wide<BlendRun::V>({y, out})};
  map<BlendRun::V>(context, a.kName, body, 1, n);
}

namespace {

template <typename P, typename B, typename T>
void tree_sum_as(const TreeSum& a, const Context& context) {
  using Run = TreeSumRun<P, B, T>;
  const std::int64_t n = a.parts.extent(0), elements = a.out.elements();
  TESSERA_CHECK(n <= kMostParts, "{} of {} parts, at most {}", a.kName, n, kMostParts);
  // Columns matter to the bias only.
  const std::int64_t rows = a.bias ? a.out.rows() : 1, columns = a.bias ? a.out.cols() : elements;
  const View parts = a.parts.reshaped({n, elements}), out = a.out.reshaped({rows, columns});
  const Run body{parts.as<P>(),
                 n,
                 elements,
                 columns,
                 reinterpret_cast<const B*>(a.bias.data),
                 out.as<T>(),
                 a.write == Write::add,
                 wide<Run::V>({parts, out, a.bias})};
  map<Run::V>(context, a.kName, body, rows, columns);
}

}  // namespace

void run(const TreeSum& a, const Context& context) {
  with_type(a.out.type, [&]<typename T>() {
    if (a.bias) {
      with_type(a.bias.type, [&]<typename B>() { tree_sum_as<float, B, T>(a, context); });
    } else {
      with_type(a.parts.type, [&]<typename P>() { tree_sum_as<P, T, T>(a, context); });
    }
  });
}

namespace {

/// As many blocks as are at work at once, all of whose warps have a tile of n elements.
std::int64_t exact_blocks(std::int64_t n, std::int64_t sums, const Context& context) {
  return std::min(ceil_div(n, kExactWarps * kExactTile),
                  ceil_div(8 * std::int64_t{context.multiprocessors}, sums));
}

}  // namespace

void run(const ExactSum& a, const Context& context) {
  const std::int64_t n = a.x.elements();
  with_type(a.x.type, [&]<typename T>() {
    const View x = a.x.range(0, n);
    const bool squares = a.of == ExactSum::Of::squares;
    launch(on(context, a.kName, exact_blocks(n, 1, context), 32 * kExactWarps),
           squares ? exact_sum_kernel<T, true> : exact_sum_kernel<T, false>, x.as<T>(), n,
           wide<kRun<T>>({x}), reinterpret_cast<Atomic*>(a.accumulator.data));
  });
  launch(on(context, a.kName, 1, 32), exact_normalise_kernel, a.accumulator.as<std::int64_t>());
}

void run(const ExactSums& a, const Context& context) {
  const std::int64_t rows = a.x.rows(), columns = a.x.cols();
  with_type(a.x.type, [&]<typename T>() {
    const std::int64_t blocks = rows > 0 ? exact_blocks(columns, rows, context) : 0;
    launch(on(context, a.kName, rows * blocks, 32 * kExactWarps), exact_sums_kernel<T>, a.x.as<T>(),
           columns, blocks, a.into.as<std::int32_t>(), wide<kRun<T>>({a.x}),
           reinterpret_cast<Atomic*>(a.accumulators.data));
  });
  launch(on(context, a.kName, a.accumulators.rows(), 32), exact_normalise_kernel,
         a.accumulators.as<std::int64_t>());
}

}  // namespace tessera::kernels::cuda
