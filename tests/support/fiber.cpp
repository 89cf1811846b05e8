#include "support/fiber.hpp"

#include <cstdint>
#include <cstdlib>

namespace tessera::test {

namespace {

/// To the place where __builtin_setjmp(at) was called, which must be in another function.
TESSERA_SWITCHES_STACKS void go_on(void** at) { __builtin_longjmp(at, 1); }

}  // namespace

void Fiber::prepare(void (*enter)(void*), void* argument, std::byte* stack, std::size_t bytes) {
  enter_ = enter, argument_ = argument, begun_ = false;
  if (getcontext(&start_) != 0) std::abort();
  start_.uc_stack.ss_sp = stack;
  start_.uc_stack.ss_size = bytes;
  start_.uc_link = nullptr;
  sanitized_.begin(stack, bytes);
  const auto self = reinterpret_cast<std::uintptr_t>(this);  // makecontext passes ints
  makecontext(&start_, reinterpret_cast<void (*)()>(&Fiber::begin), 2,
              static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
}

TESSERA_SWITCHES_STACKS void Fiber::begin(unsigned high, unsigned low) {
  auto* self = reinterpret_cast<Fiber*>(std::uintptr_t{high} << 32 | low);
  self->sanitized_.enter();
  self->enter_(self->argument_);
  std::abort();
}

TESSERA_SWITCHES_STACKS void Fiber::switch_to(Fiber& to) {
  if (__builtin_setjmp(at_.data()) != 0) {
    sanitized_.enter();
    return;
  }
  sanitized_.leave(to.sanitized_);
  if (to.begun_) go_on(to.at_.data());
  to.begun_ = true;
  setcontext(&to.start_);
  std::abort();
}

}  // namespace tessera::test
