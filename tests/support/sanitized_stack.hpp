// Tells the sanitizers that code goes on on another stack, so that they can follow fibers. Does
// nothing in builds without them.
#pragma once

#include <cstddef>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

// Of functions that switch stacks. AddressSanitizer would have them unpoison all of the stack
// before what does not return, ThreadSanitizer notes where each begins on one stack and ends on
// another.
#if defined(__has_attribute) && __has_attribute(disable_sanitizer_instrumentation)
#define TESSERA_SWITCHES_STACKS __attribute__((noinline, disable_sanitizer_instrumentation))
#else
#define TESSERA_SWITCHES_STACKS \
  __attribute__((noinline, no_sanitize("address"), no_sanitize("thread")))
#endif

namespace tessera::test {

/// The stack of a fiber, or of the thread that fibers are entered from.
class SanitizedStack {
 public:
  SanitizedStack() = default;
  SanitizedStack(const SanitizedStack&) = delete;
  SanitizedStack& operator=(const SanitizedStack&) = delete;
  ~SanitizedStack() { end(); }

  /// A fiber that will begin on these bytes, which may hold what another has left behind.
  void begin(std::byte* bytes, std::size_t size);
  /// On this stack, directly before the switch to `to`.
  void leave(SanitizedStack& to);
  /// On this stack, directly after the switch to it.
  void enter();

 private:
  void end();

#ifdef __SANITIZE_ADDRESS__
  const void* bytes_ = nullptr;  // of a thread: known once it has been left
  std::size_t size_ = 0;
  void* fake_ = nullptr;
  static inline thread_local SanitizedStack* left_ = nullptr;
#endif
#ifdef __SANITIZE_THREAD__
  void* fiber_ = nullptr;
  bool begun_ = false;  // so that fiber_ is this object's own
#endif
};

#ifdef __SANITIZE_ADDRESS__

inline void SanitizedStack::begin(std::byte* bytes, std::size_t size) {
  __asan_unpoison_memory_region(bytes, size);
  bytes_ = bytes, size_ = size, fake_ = nullptr;
}
inline void SanitizedStack::end() {}
inline void SanitizedStack::leave(SanitizedStack& to) {
  left_ = this;
  __sanitizer_start_switch_fiber(&fake_, to.bytes_, to.size_);
}
inline void SanitizedStack::enter() {
  __sanitizer_finish_switch_fiber(fake_, &left_->bytes_, &left_->size_);
}

#elif defined(__SANITIZE_THREAD__)

inline void SanitizedStack::begin(std::byte*, std::size_t) {
  end();
  fiber_ = __tsan_create_fiber(0);
  begun_ = true;
}
inline void SanitizedStack::end() {
  if (begun_) __tsan_destroy_fiber(fiber_);
}
TESSERA_SWITCHES_STACKS inline void SanitizedStack::leave(SanitizedStack& to) {
  if (!begun_) fiber_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.fiber_, 0);
}
inline void SanitizedStack::enter() {}

#else

inline void SanitizedStack::begin(std::byte*, std::size_t) {}
inline void SanitizedStack::end() {}
inline void SanitizedStack::leave(SanitizedStack&) {}
inline void SanitizedStack::enter() {}

#endif

}  // namespace tessera::test
