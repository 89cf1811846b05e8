// Whether this is a build with sanitizers, in which code runs several times slower: tests that try
// many orders of the same work try fewer.
#pragma once

#include <cstddef>
#include <vector>

namespace tessera::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// All of them, or one of three in builds with sanitizers.
template <typename T>
std::vector<T> some_of(const std::vector<T>& all) {
  if (!kSanitized) return all;
  std::vector<T> some;
  for (std::size_t i = 0; i < all.size(); i += 3) some.push_back(all[i]);
  return some;
}

}  // namespace tessera::test
