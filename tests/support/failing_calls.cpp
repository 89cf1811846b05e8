#include "support/failing_calls.hpp"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace tessera::test {
namespace {

class Calls {
 public:
  void refuse(Refusal refusal) {
    first_ = refusal.first, all_ = refusal.all_from_there;
    count_ = 0, refused_ = false;
  }
  bool may_go_on() {
    const std::int64_t n = count_.fetch_add(1), first = first_;
    if (first < 0 || (all_ ? n < first : n != first)) return true;
    refused_ = true;
    return false;
  }
  bool refused() const { return refused_; }

 private:
  std::atomic<std::int64_t> count_{0}, first_{-1};
  std::atomic<bool> all_{false}, refused_{false};
};

Calls allocations, threads;
std::atomic<std::int64_t> live{0};

/// A program that has this preloaded is told by TESSERA_REFUSE_NEW and TESSERA_REFUSE_THREAD. What
/// libraries allocate before main() is not counted.
void read_environment() {
  if (const char* n = std::getenv("TESSERA_REFUSE_NEW")) allocations.refuse({.first = atoll(n)});
  if (const char* n = std::getenv("TESSERA_REFUSE_THREAD")) threads.refuse({.first = atoll(n)});
}

using Main = int(int, char**, char**);
Main* main_of_program = nullptr;

int counted_main(int count, char** words, char** environment) {
  read_environment();
  return main_of_program(count, words, environment);
}

/// Whether the code at `address` is of the file that ends so.
bool is_of(void* address, const char* file) {
  Dl_info caller{};
  if (::dladdr(address, &caller) == 0) return false;
  const std::size_t length = std::strlen(caller.dli_fname), wanted = std::strlen(file);
  return length >= wanted && std::strcmp(caller.dli_fname + length - wanted, file) == 0;
}

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (!allocations.may_go_on()) return nullptr;
  void* memory = nullptr;
  if (alignment <= alignof(std::max_align_t)) {
    memory = std::malloc(bytes > 0 ? bytes : 1);
  } else if (::posix_memalign(&memory, alignment, bytes) != 0) {
    memory = nullptr;
  }
  if (memory != nullptr) live.fetch_add(1);
  return memory;
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* memory = allocate(bytes, alignment)) return memory;
  if (const std::new_handler handler = std::get_new_handler()) handler();  // throws, as tessera's
  throw std::bad_alloc();
}

void release(void* memory) noexcept {
  if (memory == nullptr) return;
  live.fetch_sub(1);
  std::free(memory);
}

}  // namespace

void refuse_allocation(Refusal refusal) { allocations.refuse(refusal); }
bool allocation_was_refused() { return allocations.refused(); }
std::int64_t live_allocations() { return live; }
void refuse_thread(Refusal refusal) { threads.refuse(refusal); }
bool thread_was_refused() { return threads.refused(); }

}  // namespace tessera::test

using tessera::test::allocate;
using tessera::test::allocate_or_throw;
using tessera::test::Main;
using tessera::test::release;
using Alignment = std::align_val_t;
constexpr std::size_t kUsual = 1;

void* operator new(std::size_t n) { return allocate_or_throw(n, kUsual); }
void* operator new[](std::size_t n) { return allocate_or_throw(n, kUsual); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return allocate(n, kUsual); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return allocate(n, kUsual); }
void* operator new(std::size_t n, Alignment a) { return allocate_or_throw(n, std::size_t(a)); }
void* operator new[](std::size_t n, Alignment a) { return allocate_or_throw(n, std::size_t(a)); }
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, std::size_t) noexcept { release(p); }
void operator delete[](void* p, std::size_t) noexcept { release(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { release(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { release(p); }
void operator delete(void* p, Alignment) noexcept { release(p); }
void operator delete[](void* p, Alignment) noexcept { release(p); }
void operator delete(void* p, std::size_t, Alignment) noexcept { release(p); }
void operator delete[](void* p, std::size_t, Alignment) noexcept { release(p); }

extern "C" [[gnu::visibility("default")]] int pthread_create(pthread_t* thread,
                                                             const pthread_attr_t* attributes,
                                                             void* (*work)(void*),
                                                             void* argument) noexcept {
  using Function = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto real = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, "pthread_create"));
  // MPI and OpenMP have threads too, and ways of their own to end where they get none.
  const bool ours = tessera::test::is_of(__builtin_return_address(0), "libstdc++.so.6");
  if (ours && !tessera::test::threads.may_go_on()) return EAGAIN;
  return real(thread, attributes, work, argument);
}

/// Says on stderr where the program itself listens, with TESSERA_SAY_LISTEN; MPI listens too.
extern "C" [[gnu::visibility("default")]] int listen(int descriptor, int waiting) noexcept {
  static const auto real = reinterpret_cast<int (*)(int, int)>(::dlsym(RTLD_NEXT, "listen"));
  sockaddr_in at{};
  socklen_t size = sizeof at;
  char text[INET_ADDRSTRLEN] = "";
  if (std::getenv("TESSERA_SAY_LISTEN") != nullptr &&
      tessera::test::is_of(__builtin_return_address(0), "/tessera") &&
      ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&at), &size) == 0 &&
      ::inet_ntop(AF_INET, &at.sin_addr, text, sizeof text) != nullptr)
    std::fprintf(stderr, "listens on %s\n", text);
  return real(descriptor, waiting);
}

extern "C" [[gnu::visibility("default")]] int __libc_start_main(Main* main_of, int count,
                                                                char** words, void (*init)(),
                                                                void (*fini)(), void (*at_end)(),
                                                                void* stack) {
  using Start = int(Main*, int, char**, void (*)(), void (*)(), void (*)(), void*);
  const auto real = reinterpret_cast<Start*>(::dlsym(RTLD_NEXT, "__libc_start_main"));
  tessera::test::main_of_program = main_of;
  return real(tessera::test::counted_main, count, words, init, fini, at_end, stack);
}
