// Whether this is a build with sanitizers, in which code runs several times slower: tests that try
// many orders of the same work try fewer.
#pragma once

namespace tessera::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace tessera::test
