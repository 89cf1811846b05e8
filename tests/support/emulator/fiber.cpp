#include "fiber.hpp"

#include <cstdint>
#include <cstdlib>

namespace tessera::emulator {

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

void Fiber::begin(unsigned high, unsigned low) {
  auto* self = reinterpret_cast<Fiber*>(std::uintptr_t{high} << 32 | low);
  self->sanitized_.enter();
  self->enter_(self->argument_);
  std::abort();
}

void Fiber::switch_to(Fiber& to) {
  if (_setjmp(at_) != 0) {
    sanitized_.enter();
    return;
  }
  sanitized_.leave(to.sanitized_);
  if (to.begun_) _longjmp(to.at_, 1);
  to.begun_ = true;
  setcontext(&to.start_);
  std::abort();
}

}  // namespace tessera::emulator
