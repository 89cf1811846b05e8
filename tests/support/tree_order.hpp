// The order in which contributions of ranks are added, written a second time: by halving.
#pragma once

#include <cstdint>

namespace tessera::test {

/// ((0+1)+(2+3))+... of term(begin) .. term(end - 1), in f32: its left half is the largest power of
/// two that is less than all of them.
template <typename Term>
float tree_order_sum(std::int64_t begin, std::int64_t end, const Term& term) {
  if (end - begin == 1) return term(begin);
  std::int64_t half = 1;
  while (2 * half < end - begin) half *= 2;
  return tree_order_sum(begin, begin + half, term) + tree_order_sum(begin + half, end, term);
}

}  // namespace tessera::test
