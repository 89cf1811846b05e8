// The order of sums over parts that ranks may hold, shared by every back end.
#pragma once

#include <cstdint>

#include "kernels/common/math.hpp"

namespace tessera::kernels {

inline constexpr int kAnyLevels = 63;

/// term(0) + .. + term(n - 1), 1 <= n < 2^kLevels, in an aligned binary tree, ((0+1)+(2+3))+...: so
/// the sum of 2^k neighbouring terms that begin at a multiple of 2^k is one of its nodes, and a
/// rank that holds them can compute it alone. Works like a binary counter of partial sums: level k
/// has one where bit k of the number of terms so far is set. Device code asks for few levels, which
/// stay in registers.
template <int kLevels = kAnyLevels, typename Term>
TESSERA_INLINE auto tree_sum(std::int64_t n, Term&& term) {
  using Sum = decltype(term(n));
  Sum partial[kLevels];
  if constexpr (kLevels < kAnyLevels) {
    for (Sum& p : partial) p = Sum{};  // read, never used, where its level is empty
  }
  for (std::int64_t i = 0; i < n; ++i) {
    auto sum = term(i);
    bool carried = true;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int level = 0; level < kLevels; ++level) {
      if (kLevels == kAnyLevels && !carried) break;
      if (!carried) continue;  // a way out would keep the loop, and so the array in memory
      carried = (i >> level & 1) != 0;
      if (carried) {
        sum = partial[level] + sum;
      } else {
        partial[level] = sum;
      }
    }
  }
  auto sum = partial[0];
  bool begun = false;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int level = 0; level < kLevels; ++level) {
    if ((n >> level & 1) == 0) continue;
    sum = begun ? partial[level] + sum : partial[level];
    begun = true;
  }
  return sum;
}

/// The same tree over term(begin) .. term(n - 1), of which it has at most kSize, a power of two:
/// calls that a compiler resolves, and whose terms may be in registers.
template <int kSize, typename Term>
TESSERA_INLINE auto small_tree_sum(int n, Term&& term, int begin = 0) {
  if constexpr (kSize == 1) {
    return term(begin);
  } else {
    auto sum = small_tree_sum<kSize / 2>(n, term, begin);
    if (begin + kSize / 2 < n) sum = sum + small_tree_sum<kSize / 2>(n, term, begin + kSize / 2);
    return sum;
  }
}

}  // namespace tessera::kernels
