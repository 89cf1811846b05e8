// The order of sums over parts that ranks may hold, shared by every back end.
#pragma once

#include <cstdint>

#include "kernels/common/math.hpp"

namespace tessera::kernels {

/// term(0) + .. + term(n - 1), 1 <= n < 2^kLevels, in an aligned binary tree, ((0+1)+(2+3))+...:
/// whoever holds 2^k neighbours from a multiple of 2^k on holds one of its nodes. A binary counter
/// of partial sums: level k has one where bit k of the number of terms so far is set. Device code
/// asks for few levels, which stay in registers.
template <int kLevels = 63, typename Term>
TESSERA_INLINE auto tree_sum(std::int64_t n, Term&& term) {
  decltype(term(n)) partial[kLevels];
  for (std::int64_t i = 0; i < n; ++i) {
    auto sum = term(i);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int level = 0; level < kLevels; ++level) {
      if ((i >> level & 1) == 0) {
        partial[level] = sum;
        break;
      }
      sum = partial[level] + sum;
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

}  // namespace tessera::kernels
