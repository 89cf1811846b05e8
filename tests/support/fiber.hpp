// A fiber: code that runs on a stack of its own and is switched to by hand.
#pragma once

#include <ucontext.h>

#include <array>
#include <cstddef>

#include "support/sanitized_stack.hpp"

namespace tessera::test {

/// A place that execution can leave and come back to: a fiber's, or that of whoever runs fibers. A
/// fiber is entered by setcontext, afterwards by __builtin_longjmp: neither signal masks, which
/// take a system call, nor what sanitizers know of a stack (which they forget at a longjmp of the C
/// library) changes with it.
class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// At the first switch to it `enter(argument)` begins, which must never return.
  void prepare(void (*enter)(void*), void* argument, std::byte* stack, std::size_t bytes);
  /// Leaves `this`, which is running, for `to`; returns when something switches back.
  void switch_to(Fiber& to);

 private:
  static void begin(unsigned high, unsigned low);

  std::array<void*, 5> at_{};  // as __builtin_setjmp has it
  SanitizedStack sanitized_;
  ucontext_t start_{};
  bool begun_ = true;  // not so between prepare() and the first switch
  void (*enter_)(void*) = nullptr;
  void* argument_ = nullptr;
};

}  // namespace tessera::test
