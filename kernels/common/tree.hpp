// The order of sums over parts that ranks may hold, shared by every back end.
#pragma once

#include <cstdint>

#include "kernels/common/math.hpp"

namespace tessera::kernels {

/// term(0) + .. + term(n - 1), n >= 1, in an aligned binary tree, ((0+1)+(2+3))+...: whoever holds
/// 2^k neighbours from a multiple of 2^k on holds one of its nodes. A binary counter of partial
/// sums: node i of a level is added to its left neighbour when i is odd.
template <typename Term>
TESSERA_INLINE auto tree_sum(std::int64_t n, Term&& term) {
  decltype(term(n)) partial[64];
  int depth = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    auto sum = term(i);
    for (std::int64_t node = i; node % 2 == 1; node /= 2) sum = partial[--depth] + sum;
    partial[depth++] = sum;
  }
  auto sum = partial[--depth];
  while (depth > 0) sum = partial[--depth] + sum;
  return sum;
}

}  // namespace tessera::kernels
