// Columns that heads share, on the CPU: checks arguments, divides rows over the team.
#include <cstring>

#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {

void run(const JoinHeads& a, const Context& context) {
  const auto own = static_cast<std::size_t>(a.own.cols() / a.heads * size_of(a.out.type)),
             shared = static_cast<std::size_t>(a.shared.cols() * size_of(a.out.type));
  const auto row = [](const View& v, std::int64_t r) {
    return v.data + r * v.ld * size_of(v.type);
  };
  parallel_ranges(context.threads, a.out.rows(), 1, [&](Range rows) {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      std::byte* to = row(a.out, r);
      const std::byte* from = row(a.own, r);
      for (std::int64_t h = 0; h < a.heads; ++h, from += own, to += own + shared) {
        std::memcpy(to, from, own);
        std::memcpy(to + own, row(a.shared, r), shared);
      }
    }
  });
}

void run(const SplitHeads& a, const Context& context) {
  parallel_ranges(context.threads, a.d.rows(), 1,
                  [&](Range rows) { context.hot.split_heads(a, rows); });
}

}  // namespace tessera::kernels::cpu
