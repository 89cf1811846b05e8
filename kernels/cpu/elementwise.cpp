// Fill, rows in turn, conversion and sums on the CPU: checks arguments, divides elements over the
// team.
#include <algorithm>
#include <cstring>

#include "core/exact_sum.hpp"
#include "kernels/common/verdict.hpp"
#include "kernels/cpu/clear.hpp"
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {

void run(const Fill& a, const Context& context) { clear_rows(a.out, context.threads); }

void run(const TakeRow& a, const Context& context) {
  std::int64_t& next = *a.next.as<std::int64_t>();
  const View row = a.x.row_range(next, 1);  // checks that there is such a row
  next = (next + 1) % a.x.rows();
  parallel_ranges(context.threads, row.cols(), 1 << 16, [&](Range part) {
    std::memcpy(a.out.data + part.begin, row.data + part.begin,
                static_cast<std::size_t>(part.count()));
  });
}

void run(const Convert& a, const Context& context) {
  if (!applies(reinterpret_cast<const float*>(a.verdict.data))) return;
  const std::int64_t n = a.x.elements();
  if (!a.x.dense() || !a.out.dense()) {
    const View x = a.x.matrix(), out = a.out.matrix();
    return parallel_ranges(context.threads, x.rows(), std::max<std::int64_t>(1, 4096 / x.cols()),
                           [&](Range rows) { context.hot.convert(x, out, a.write, rows); });
  }
  parallel_ranges(context.threads, n, 4096, [&](Range part) {
    context.hot.convert(a.x.range(part.begin, part.count()), a.out.range(part.begin, part.count()),
                        a.write, {0, 1});
  });
}

void run(const OrderChunks& a, const Context& context) {
  const std::int64_t tokens = a.tokens();
  const View x = a.x.matrix(), out = a.out.matrix();
  const auto bytes = static_cast<std::size_t>(x.cols() * size_of(x.type));
  const auto row = [](const View& v, std::int64_t i) {
    return v.data + i * v.ld * size_of(v.type);
  };
  parallel_ranges(context.threads, x.rows(), 1, [&](Range rows) {
    for (std::int64_t i = rows.begin; i < rows.end; ++i) {
      const std::int64_t other = a.chunks.row_by_tokens(i, a.samples, tokens);
      const bool to_tokens = a.to == OrderChunks::To::tokens;
      std::memcpy(row(out, to_tokens ? other : i), row(x, to_tokens ? i : other), bytes);
    }
  });
}

void run(const Scale& a, const Context& context) {
  parallel_ranges(context.threads, a.x.rows(), 1,
                  [&](Range rows) { context.hot.scale(a.x, a.factor, a.out, rows); });
}

void run(const Blend& a, const Context& context) {
  const auto* verdict = reinterpret_cast<const float*>(a.verdict.data);
  if (!applies(verdict)) return;
  const float factor = blend_factor(a.add, reinterpret_cast<const float*>(a.scalars.data), verdict);
  parallel_ranges(context.threads, a.out.elements(), 4096,
                  [&](Range elements) { context.hot.blend(a, factor, elements); });
}

void run(const TreeSum& a, const Context& context) {
  const std::int64_t n = a.out.elements(), parts = a.parts.extent(0);
  TreeSum b = a;
  b.parts = a.parts.reshaped({parts, n});
  parallel_ranges(context.threads, n, 4096,
                  [&](Range elements) { context.hot.tree_sum(b, elements); });
}

namespace {
constexpr std::int64_t kAccumulatorBytes = kExactSumWords * sizeof(std::int64_t);
}

std::int64_t scratch_bytes(const ExactSum&, const Context& context) {
  return context.threads * kAccumulatorBytes;
}

void run(const ExactSum& a, const Context& context) {
  const std::int64_t n = a.x.elements();
  std::memset(a.scratch.data, 0, static_cast<std::size_t>(context.threads * kAccumulatorBytes));
  const auto part_words = [&](std::int64_t i) {
    return reinterpret_cast<std::int64_t*>(a.scratch.data) + i * kExactSumWords;
  };
  parallel_ranges(context.threads, context.threads, 1, [&](Range parts) {
    for (std::int64_t i = parts.begin; i < parts.end; ++i) {
      context.hot.exact_sum(a.x, a.of, even_part(n, i, context.threads), part_words(i));
    }
  });
  const ExactWords words(a.accumulator.as<std::int64_t>(), kExactSumWords);
  for (std::int64_t i = 0; i < context.threads; ++i) {
    exact_merge(words, ConstExactWords(part_words(i), kExactSumWords));
  }
  exact_normalise(words);
}

/// The team divides the sums, so that no two threads add to one.
void run(const ExactSums& a, const Context& context) {
  const auto* into = a.into.as<std::int32_t>();
  const std::int64_t columns = a.x.cols();
  parallel_ranges(context.threads, a.accumulators.rows(), 1, [&](Range sums) {
    for (std::int64_t k = sums.begin; k < sums.end; ++k) {
      auto* words = a.accumulators.as<std::int64_t>() + k * kExactSumWords;
      for (std::int64_t r = 0; r < a.x.rows(); ++r) {
        if (into[r] == k)
          context.hot.exact_sum(a.x, ExactSum::Of::values, {r * columns, (r + 1) * columns}, words);
      }
      exact_normalise(ExactWords(words, kExactSumWords));
    }
  });
}

}  // namespace tessera::kernels::cpu
