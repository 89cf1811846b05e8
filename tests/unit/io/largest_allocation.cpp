#include "largest_allocation.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> largest = 0;  // 0 where nothing is counted

}  // namespace

#ifndef __SANITIZE_THREAD__  // clang's library for it has operators that nothing may replace
// In a file of its own, so that the compiler sees no pair of new and free inlined into one place.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  std::size_t seen = largest;
  while (bytes > seen && !largest.compare_exchange_weak(seen, bytes)) {
  }
  return std::malloc(bytes > 0 ? bytes : 1);
}
void* operator new(std::size_t bytes) {
  if (void* memory = ::operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace tessera::test {

void reset_largest_allocation() { largest = 0; }
std::size_t largest_allocation() { return largest; }

}  // namespace tessera::test
